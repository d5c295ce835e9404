"""Retry policies: how often a task may run, and how long it waits in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.core.durations import Duration, duration_ms
from holdfast.core.policy import DEFAULT_POLICY, RunPolicy
from holdfast.errors import BadOption

MAX_ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True)
class Retry:
    """How a task type is retried, as people declare it.

    `give_up_on` and `retry_on` take exception classes or their names (`"builtins.ValueError"`).
    """

    max_attempts: int = 5
    base: Duration = "30s"
    cap: Duration = "30m"
    jitter: float = 0.5
    give_up_on: tuple[type[BaseException] | str, ...] = ()
    retry_on: tuple[type[BaseException] | str, ...] = ()
    dead_letter: bool = True

    def __post_init__(self) -> None:
        self.policy()

    def policy(self, before: RunPolicy = DEFAULT_POLICY) -> RunPolicy:
        """The same in the form that is recorded with a task; what is not about retries stays as it was `before`."""
        whole = isinstance(self.max_attempts, int) and not isinstance(self.max_attempts, bool)
        if not whole or not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise BadOption(f"retry: max_attempts {self.max_attempts!r} must be from 1 to {MAX_ATTEMPTS}")
        if not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter <= 1:
            raise BadOption(f"retry: jitter {self.jitter!r} must be between 0 and 1")
        return replace(
            before,
            max_attempts=self.max_attempts,
            base_ms=duration_ms(self.base, "retry: base"),
            cap_ms=duration_ms(self.cap, "retry: cap"),
            jitter=float(self.jitter),
            give_up_on=_names("give_up_on", self.give_up_on),
            retry_on=_names("retry_on", self.retry_on),
            dead_letter=bool(self.dead_letter),
        )


def error_name(error: type[BaseException]) -> str:
    """The name by which an exception class is recorded and compared."""
    return f"{error.__module__}.{error.__qualname__}"


def error_names(error: BaseException) -> tuple[str, ...]:
    """The names of an exception's class and of all its base classes."""
    return tuple(error_name(cls) for cls in type(error).__mro__ if issubclass(cls, BaseException))


def _names(option: str, classes: Sequence[type[BaseException] | str]) -> tuple[str, ...]:
    if isinstance(classes, (str, type)):
        raise BadOption(f"retry: {option} takes a tuple, as in {option}=(ValueError,)")
    return tuple(_name(option, cls) for cls in classes)


def _name(option: str, cls: type[BaseException] | str) -> str:
    if isinstance(cls, str):
        return cls if "." in cls else f"builtins.{cls}"
    if isinstance(cls, type) and issubclass(cls, BaseException):
        return error_name(cls)
    raise BadOption(f"retry: {option} takes exception classes, not {cls!r}")
