"""What happened, in order: the orders of the producers, the faults, and what was wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.task import State

_AROUND = 20
_BEGAN_AT: Final = time.time() - time.monotonic()
_SUCCEEDS: Final = frozenset({State.SUCCEEDED})


def moment(monotonic: float | None = None) -> float:
    """The time now, or at another moment of the monotonic clock; the same whatever is done to the wall clock."""
    return _BEGAN_AT + (time.monotonic() if monotonic is None else monotonic)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; `task_id` is empty if it was not about a task."""

    at: float
    who: str
    what: str
    task_id: str = ""

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self.at)) + f"{self.at % 1:.3f}"[1:]
        return f"{clock} {self.who:<9} {self.task_id:<32} {self.what}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise; `rule` is its short name."""

    rule: str
    what: str
    task_id: str = ""
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}" + (f" (task {self.task_id})" if self.task_id else "")


@dataclass(slots=True)
class Order:
    """One request to record a task, known by its request_id; sent until acknowledged, or given up."""

    request_id: str
    number: int
    queue: str
    kind: str
    #: None: it is not known whether it was recorded.
    task_id: str | None = None
    acknowledged_at: float = 0.0
    sent_at: float = field(default_factory=moment)
    #: The arguments beside the number; None for a task of the load.
    more: Mapping[str, Any] | None = None
    #: The states in which its task may end.
    ends: frozenset[State] = _SUCCEEDS

    @property
    def arguments(self) -> dict[str, Any]:
        """What its task is called with."""
        return {"number": self.number, **({"kind": self.kind} if self.more is None else self.more)}


@dataclass(frozen=True, slots=True)
class Pace:
    """Tasks a second in the first and in the last quarter of a time in which a snapshot was held.

    Seconds of the clock, and of the server's processors: a plan that has become bad shows in both, other work on this
    machine in the first only.
    """

    first: float
    last: float
    first_of_processors: float
    last_of_processors: float

    @property
    def share(self) -> float:
        """What is left of it at the end, other work on this machine left out."""
        return max(self.last / self.first, self.last_of_processors / self.first_of_processors)

    def __str__(self) -> str:
        return (
            f"{self.first:,.0f} tasks/s in the first quarter, {self.last:,.0f} in the last; for each second of the "
            f"server's processors {self.first_of_processors:,.0f} and {self.last_of_processors:,.0f}: {self.share:.0%}"
        )


@dataclass
class Journal:
    """Filled from several threads; each of these lists is only ever appended to."""

    seed: int
    events: list[Event] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    orders: dict[str, Order] = field(default_factory=dict)
    #: When each order was acknowledged, in order.
    acknowledged: list[float] = field(default_factory=list)
    #: When each fault began, and its name.
    faults: list[tuple[float, str]] = field(default_factory=list)
    #: When the clock was stepped.
    steps: list[float] = field(default_factory=list)
    #: After poison: how many slots ran a task at the same time, and how many there are.
    slots: list[tuple[int, int]] = field(default_factory=list)
    paces: list[Pace] = field(default_factory=list)
    #: What went wrong in producers that forked.
    fork_failures: list[str] = field(default_factory=list)
    #: What was measured, for the report: a name and a text.
    figures: list[tuple[str, str]] = field(default_factory=list)
    repeats: int = 0
    errors: int = 0
    stale_tried: int = 0
    stale_refused: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_order(self, queue: str, kind: str, **details: Any) -> Order:
        """One more order, under a number of its own."""
        number = next(self.numbers)
        order = Order(f"r{self.seed}-{number}", number, queue, kind, **details)
        self.orders[order.request_id] = order
        return order

    def acknowledge(self, order: Order, task_id: str) -> None:
        """The store has this order, as this task."""
        if order.task_id is None:
            order.task_id, order.acknowledged_at = task_id, moment()
            self.acknowledged.append(order.acknowledged_at)
            self.note("producer", f"{order.request_id} ({order.kind}) acknowledged", task_id)
        elif order.task_id != task_id:
            self.violated("R3 dedup", f"{order.request_id} is now {task_id}", order.task_id)

    def note(self, who: str, what: str, task_id: str = "") -> None:
        """Writes an event down."""
        self.events.append(Event(moment(), who, what, task_id))

    def violated(self, rule: str, what: str, task_id: str = "") -> None:
        """Writes a broken promise down, as it is seen."""
        self.violations.append(Violation(rule, what, task_id, moment()))
        self.note("VIOLATION", f"{rule}: {what}", task_id)


def around(events: Iterable[Event], violation: Violation) -> list[Event]:
    """The events around a violation: those of its task first of all, and what was nearest to them in time."""
    in_order = sorted(events, key=lambda event: event.at)
    own = [event for event in in_order if violation.task_id and event.task_id == violation.task_id]
    at = violation.at or (own[-1].at if own else in_order[-1].at if in_order else 0.0)
    others = [event for event in in_order if event not in own and (not event.task_id or not violation.task_id)]
    nearest = sorted(others, key=lambda event: abs(event.at - at))[: max(0, _AROUND - len(own))]
    return sorted([*own[-_AROUND:], *nearest], key=lambda event: event.at)


def first_of_each_rule(violations: Sequence[Violation]) -> list[Violation]:
    """One example a rule: a thousand lost tasks have one cause."""
    return list({violation.rule: violation for violation in reversed(violations)}.values())[::-1]
