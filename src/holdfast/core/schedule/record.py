"""The record of a schedule: what to enqueue, when, and what became of its last occurrence."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.payload import SIGNATURE_HEADER, is_encrypted
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy


class Missed(StrEnum):
    """What becomes of occurrences that no worker could enqueue in time."""

    SKIP = "skip"
    ONCE = "once"  # one task makes up for all of them
    ALL = "all"  # each of them, as far back as the window goes


class Overlap(StrEnum):
    """What becomes of an occurrence while the task of the last one has not ended."""

    ALLOW = "allow"  # both may run at once
    SKIP = "skip"
    QUEUE = "queue"  # it waits for that one to end


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule has its occurrences: by a cron line in a time zone, or at an interval."""

    cron: str | None = None
    timezone: str = "UTC"
    every_ms: int | None = None
    #: Each task is delayed by a part of this, drawn from the name and the occurrence, the same on every node.
    jitter_ms: int = 0
    missed: Missed = Missed.ONCE
    #: How far back `Missed.ALL` goes.
    window_ms: int = 3_600_000
    overlap: Overlap = Overlap.ALLOW

    @property
    def rhythm(self) -> tuple[str | None, str, int | None]:
        """The part that determines the occurrences; the rest says what becomes of them."""
        return self.cron, self.timezone, self.every_ms


class ScheduledCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What each occurrence enqueues."""

    type: str
    queue: str = "default"
    payload: bytes = b"{}"
    headers: dict[str, str] = {}
    priority: int = 0
    policy: RunPolicy = DEFAULT_POLICY


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as a store keeps it: one JSON document under its name, indexed by the time of its next occurrence."""

    name: str
    timing: Timing
    call: ScheduledCall
    #: Where it was declared: the app's reference, or "" for one that was made at run time.
    source: str = ""
    #: A digest of what was declared there: for as long as that stays the same, changes made at run time stay too.
    declared: str = ""
    paused: bool = False
    #: The next occurrence to enqueue, None while there is none.
    next_at_ms: int | None = None
    #: That occurrence waits until the task of the last one has ended, however long it takes.
    waiting: bool = False
    last_at_ms: int | None = None
    last_task_id: str | None = None
    #: The last occurrence that was skipped, and why: "missed" or "overlap".
    skipped_at_ms: int | None = None
    skipped_because: str = ""
    #: Grows with every change; a writer names the one that it has read.
    version: int = 1


def is_bound(call: ScheduledCall) -> bool:
    """Whether a call is good for its own queue only."""
    return is_encrypted(call.payload) or SIGNATURE_HEADER in call.headers
