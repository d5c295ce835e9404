"""Cases and the groups in which they are listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from holdfast.testing.kit.harness import HarnessFactory
from holdfast.testing.kit.kit import Kit

CaseFunction = Callable[[Kit], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """One promise and the code that checks it."""

    group: str
    name: str
    promise: str
    check: CaseFunction
    #: Whether it opens the same data a second time.
    needs_persistence: bool

    def __str__(self) -> str:
        return f"{self.group}.{self.name}"


class Group:
    """The cases of one path, in the order in which they are written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._cases: list[Case] = []

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def case(self, check: CaseFunction) -> CaseFunction:
        """Adds a case that needs one opened store."""
        return self._add(check, needs_persistence=False)

    def shared(self, check: CaseFunction) -> CaseFunction:
        """Adds a case that opens the same data a second time."""
        return self._add(check, needs_persistence=True)

    def _add(self, check: CaseFunction, needs_persistence: bool) -> CaseFunction:
        name = getattr(check, "__name__", repr(check))
        promise = (check.__doc__ or name).strip().splitlines()[0]
        self._cases.append(Case(self.name, name, promise, check, needs_persistence))
        return check


async def run_case(case: Case, factory: HarnessFactory) -> None:
    """Checks one promise on a fresh harness; an `AssertionError` tells what was not kept."""
    harness = factory()
    kit = Kit(harness, await harness.open())
    try:
        await kit.begin()
        await case.check(kit)
    except AssertionError as error:
        raise AssertionError(f"{case}: {case.promise} — {error}") from error
    finally:
        await kit.close()
        await harness.destroy()
