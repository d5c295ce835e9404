"""The records that travel between producers, stores and workers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from holdfast.core.durations import Duration, duration_ms
from holdfast.core.names import reason_of
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def moment(milliseconds: int) -> datetime:
    """The time in UTC of milliseconds since 1970; beyond the year 9999 the last one that Python knows."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return _LAST


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


#: A task's history keeps its last entries, this many; `deliveries` counts all.
HISTORY_LIMIT = 100


def kept_ms(policy: RunPolicy, state: State) -> int:
    """How long a task with this policy is kept after it has ended in this state."""
    return policy.dead_letter_ttl_ms if state is State.DEAD_LETTERED else policy.result_ttl_ms


#: Headers are for trace ids and the like; what a task works on belongs into its arguments.
MAX_HEADERS = 100
MAX_HEADER_BYTES = 8 * 1024


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


def short_error(error_type: str) -> str:
    """The name of an error class without the modules `builtins` and `holdfast.errors`."""
    return error_type.removeprefix("builtins.").removeprefix("holdfast.errors.")


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as text: nothing in it is ever imported or executed."""

    type: str
    message: str
    traceback: str = ""
    #: What the run had to say before it.
    log: tuple[LogLine, ...] = ()

    @property
    def name(self) -> str:
        """The class of the error as code writes it: `ValueError`, `HoldfastError`, `shop.OutOfStock`."""
        return short_error(self.type)


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
    #: When it became ready or was due, by the same clock; 0 from a server that does not tell.
    ready_at_ms: int = 0


class ExpiredClaim(msgspec.Struct, frozen=True):
    """A claim whose lease has expired: what a decision about it needs to know."""

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


#: The answer for a claim on a task that the store does not know.
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

    @property
    def started_at(self) -> datetime:
        """When the run began, in UTC."""
        return moment(self.started_at_ms)

    @property
    def ended_at(self) -> datetime:
        """When the run ended, in UTC."""
        return moment(self.ended_at_ms)


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
    #: The last `HISTORY_LIMIT` claims that have ended, the oldest first.
    history: tuple[Attempt, ...] = ()


# -- progress ------------------------------------------------------------------------------------------------


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of a task's log: `[1700000000000, "warning", "the disk is nearly full"]` in JSON."""

    at_ms: int  # by the clock of the worker
    level: str
    text: str

    @property
    def at(self) -> datetime:
        """When it was logged, in UTC."""
        return moment(self.at_ms)


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON document that `Hold.progress` carries and `Task.progress` keeps; of one run, the latest wins."""

    done: int | float | None = None
    total: int | float | None = None
    note: str | None = None
    #: The latest lines of this run, the first one first.
    log: tuple[LogLine, ...] = ()

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; None if the task did not report how much there is."""
        return None if self.done is None or not self.total else min(1.0, max(0.0, self.done / self.total))


_decoder = msgspec.json.Decoder(Progress)


def read_progress(data: bytes | None) -> Progress:
    """The progress that a store has kept; an empty one if there is none, or if it cannot be decoded."""
    if data is None:
        return Progress()
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Progress()


def shown_progress(task: Task) -> Progress:
    """The progress as people are shown it: a succeeded task has its log only, not the last 75 % that it reported."""
    progress = read_progress(task.progress)
    return Progress(log=progress.log) if task.state is State.SUCCEEDED else progress


def kept_log(task: Task) -> tuple[LogLine, ...]:
    """The log lines that are kept of the runs of a task, the first one first."""
    failed = [line for attempt in task.history if attempt.error is not None for line in attempt.error.log]
    # A store may still show the progress of a run that has failed: what is older than the failure is among those above.
    since_ms = failed[-1].at_ms if failed else 0
    latest = read_progress(task.progress).log
    return (*failed, *(line for line in latest if line.at_ms >= since_ms and line not in failed))


# -- outcomes ------------------------------------------------------------------------------------------------


class Snooze(Exception):
    """Returned or raised by a task: run me again after this delay, and do not count this attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay_ms = duration_ms(delay, "Snooze")


class Again(Exception):
    """Returned or raised by a task: this attempt has failed, run me again after this delay while attempts are left.

    `raise Again("30s") from error` keeps that error in the history. Without a delay, the backoff of the policy is used.
    """

    #: Also of a subclass that does not call `super().__init__`.
    delay_ms: int | None = None

    def __init__(self, delay: Duration | None = None, message: str = "") -> None:
        super().__init__(message or "asked to run again")
        self.delay_ms = None if delay is None else duration_ms(delay, "Again")


class Cancel(Exception):
    """Returned or raised by a task: end me as cancelled, for this reason, without a retry."""

    #: Also of a subclass that does not call `super().__init__`.
    reason: str = "cancelled by the task itself"

    def __init__(self, reason: str = reason) -> None:
        super().__init__(reason)
        self.reason = reason_of(reason)


#: What a task returns or raises to say what is to become of it; never its result.
Outcome = Snooze | Again | Cancel
OUTCOMES = (Snooze, Again, Cancel)
