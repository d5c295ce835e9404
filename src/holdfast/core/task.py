"""The records that travel between producers, stores and workers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from holdfast.core.policy import DEFAULT_POLICY, RunPolicy
from holdfast.core.progress import LogLine


class State(StrEnum):
    """Where a task stands; every task is in exactly one of them."""

    BLOCKED = "blocked"  # waits for other tasks
    SCHEDULED = "scheduled"  # waits for its time
    READY = "ready"  # waits for a worker
    CLAIMED = "claimed"  # one worker holds it
    RETRY_PENDING = "retry_pending"  # failed, waits for its next attempt
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # ended without success, and its policy keeps no dead letter
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"


FINAL_STATES = frozenset({State.SUCCEEDED, State.FAILED, State.DEAD_LETTERED, State.CANCELLED})
WAITING_STATES = frozenset({State.BLOCKED, State.SCHEDULED, State.READY, State.RETRY_PENDING})


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope of a task, as a producer hands it to a store; never changed afterwards."""

    task_id: str
    type: str
    queue: str
    payload: bytes  # a JSON object: the arguments by name
    headers: dict[str, str] = {}
    request_id: str | None = None
    priority: int = 0
    policy: RunPolicy = DEFAULT_POLICY
    #: Wait this long, by the store's clock. Ignored when `run_at_ms` is set.
    delay_ms: int = 0
    #: Wait until this time, compared with the store's clock only.
    run_at_ms: int | None = None


def with_trace(headers: dict[str, str], trace: Mapping[str, str] | None) -> dict[str, str]:
    """Headers of a task, and those of the trace in which it is recorded unless they name one themselves."""
    return headers if not trace or "traceparent" in headers else {**trace, **headers}


class Enqueued(msgspec.Struct, frozen=True):
    """The answer to one enqueued task: the id under which it is known, and whether this call made it."""

    task_id: str
    created: bool = True
    #: Set when the id already stands for a different task; nothing was recorded.
    conflict: str | None = None


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as text: nothing in it is ever imported or executed."""

    type: str
    message: str
    traceback: str = ""
    #: What the run had to say before it.
    log: tuple[LogLine, ...] = ()


class Hold(msgspec.Struct, frozen=True):
    """One claim, as its holder names it to the store."""

    task_id: str
    token: str
    #: JSON bytes to record as the task's progress, or None to leave it.
    progress: bytes | None = None


class Claimed(msgspec.Struct, frozen=True):
    """A task under a claim, as a worker receives it."""

    task_id: str
    token: str
    type: str
    queue: str
    payload: bytes
    headers: dict[str, str]
    priority: int
    policy: RunPolicy
    attempt: int
    created_at_ms: int
    #: When this claim was made, by the store's clock.
    claimed_at_ms: int
    #: When it became ready or was due, by the same clock; 0 from a gateway that does not tell.
    ready_at_ms: int = 0


class Lapsed(msgspec.Struct, frozen=True):
    """A claim that can be taken away: what a decision about it needs to know."""

    task_id: str
    token: str
    attempt: int
    policy: RunPolicy
    worker_id: str


class Extension(msgspec.Struct, frozen=True):
    """The answer to one extended claim."""

    #: False: the claim is lost, and `reason` says how.
    held: bool
    cancel_requested: bool = False
    reason: str = ""


#: The answer for a claim on a task that nobody knows.
UNKNOWN_CLAIM = Extension(False, reason="unknown")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One ended run of a task, as its history keeps it."""

    delivery: int  # 1, 2, 3… counts every claim
    attempt: int  # counts the ones that used up an attempt
    worker_id: str
    outcome: str
    started_at_ms: int
    ended_at_ms: int
    error: Failure | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """All that a store knows of one task."""

    task_id: str
    type: str
    queue: str
    state: State
    priority: int
    attempt: int  # attempts used, the running one included
    deliveries: int
    created_at_ms: int
    #: When it may run (scheduled, retry_pending) or became ready (ready, claimed).
    run_at_ms: int
    finished_at_ms: int | None = None
    worker_id: str | None = None
    claimed_at_ms: int | None = None
    lease_expires_at_ms: int | None = None
    cancel_requested: bool = False
    progress: bytes | None = None
    reason: str | None = None  # why it is dead-lettered, failed or cancelled
    request_id: str | None = None
    payload: bytes = b"{}"
    headers: dict[str, str] = {}
    policy: RunPolicy = DEFAULT_POLICY
    result: bytes | None = None
    history: tuple[Attempt, ...] = ()
