"""What happened, in order: the orders of the producers, the faults, and what was wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_AROUND = 20


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
    repeats: int = 0
    errors: int = 0
    stale_tried: int = 0
    stale_refused: int = 0

    def note(self, who: str, what: str, task_id: str = "") -> None:
        """Writes an event down."""
        self.events.append(Event(time.time(), who, what, task_id))

    def violated(self, rule: str, what: str, task_id: str = "") -> None:
        """Writes a broken promise down, as it is seen."""
        self.violations.append(Violation(rule, what, task_id, time.time()))
        self.note("VIOLATION", f"{rule}: {what}", task_id)


def around(events: Iterable[Event], violation: Violation) -> list[Event]:
    """The events around a violation: those of its task first of all, and what was nearest to them in time."""
    in_order = sorted(events, key=lambda event: event.at)
    own = [event for event in in_order if violation.task_id and event.task_id == violation.task_id]
    moment = violation.at or (own[-1].at if own else in_order[-1].at if in_order else 0.0)
    others = [event for event in in_order if event not in own and (not event.task_id or not violation.task_id)]
    nearest = sorted(others, key=lambda event: abs(event.at - moment))[: max(0, _AROUND - len(own))]
    return sorted([*own[-_AROUND:], *nearest], key=lambda event: event.at)


def first_of_each_rule(violations: Sequence[Violation]) -> list[Violation]:
    """One example a rule: a thousand lost tasks have one cause."""
    return list({violation.rule: violation for violation in reversed(violations)}.values())[::-1]
