"""One claimed task on its way through a child, as plain data: its claim, its limits, its report, how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from time import sleep
from typing import Any, Final, Protocol, TypeVar

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.core.ids import partition_of
from holdfast.core.lifecycle import Change
from holdfast.core.names import storable
from holdfast.core.payload import is_encrypted
from holdfast.core.task import Claimed, LogLine, Progress
from holdfast.errors import BadOption, ClaimLost, TimedOut, UsageError
from holdfast.producer.task_type import TaskType
from holdfast.runtime.forks import process
from holdfast.runtime.interrupts import shielded
from holdfast.security.crypto import needs_key
from holdfast.stores.contract import Store
from holdfast.worker.child.interrupt import Interruption

_log = logging.getLogger("holdfast.worker")

T = TypeVar("T")

#: How long a run whose lease seems to have expired waits for what the supervisor may have sent; in this many steps.
CATCH_UP_S = 0.1
CATCH_UP_WAITS = 20

MAX_NOTE_CHARS = 500
MAX_LINES = 100
MAX_LEVEL_CHARS = 40
MAX_LINE_CHARS = 1_000
#: Of all lines together, as JSON.
MAX_LOG_BYTES = 16 * 1024

#: None as JSON: what most tasks return.
_NULL: Final = b"null"

_CLOCK: Final = SystemClock()
_encode = msgspec.json.encode


class Ending(Enum):
    """Why a run was asked to end early."""

    CANCELLED = "cancelled"  # an operator or producer asked for it
    LOST = "lost"  # the claim is lost: nothing may be settled
    SHUTDOWN = "shutdown"  # released, another worker runs it
    TIMED_OUT = "timed_out"  # its time limit has passed


#: What is raised in a thread; a coroutine always gets a `CancelledError`.
_RAISED: dict[Ending, type[BaseException]] = {
    Ending.CANCELLED: asyncio.CancelledError,
    Ending.LOST: ClaimLost,
    Ending.SHUTDOWN: asyncio.CancelledError,
    Ending.TIMED_OUT: TimedOut,
}


@dataclass(slots=True)
class RunContext:
    """What all runs of a child share."""

    store: Store
    #: The child's own event loop, where threads have their store calls made.
    loop: asyncio.AbstractEventLoop
    #: How long a claim lasts without a heartbeat.
    lease_ms: int = 30_000
    #: What the app's lifespan has given.
    state: Any = None
    #: Of the child, as the history of its tasks has it: that of its worker and more.
    worker_id: str = ""
    #: By partition: the claims reported up to this `Held.number` last until then (monotonic), less the lost ones. It is
    #: written by the thread that listens to the supervisor, since a task that blocks the event loop keeps its claim.
    extended: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: When a run last waited in vain for more of that.
    caught_up_at_ms: int = 0
    #: By which the limits of runs and leases are kept.
    clock: Clock = _CLOCK
    #: Whether each run keeps the exception that it ended with: for hooks and tests, since it keeps its frames alive.
    keeps_errors: bool = False
    #: A process that a task forks has neither the event loop of this one nor what the supervisor sends.
    process: tuple[int, int] = field(default_factory=process)

    @property
    def forked(self) -> bool:
        """Whether this is a process that a task has forked."""
        return self.process != process()

    def wait_for(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of a step in the loop, for a thread; an exception from outside waits for its end."""
        if self.forked:
            return asyncio.run(step)
        try:
            with shielded():
                return asyncio.run_coroutine_threadsafe(step, self.loop).result()
        finally:
            step.close()  # it has ended, or was never begun


@dataclass(slots=True)
class TimeLimit:
    """When the time of a run is over; its process is killed by the supervisor, if it comes to that."""

    #: Monotonic, and the same moment by the clock of this machine.
    ends_at_ms: int
    deadline_ms: int
    over: bool = False
    timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """The run is over."""
        self.over = True
        if self.timer is not None:
            self.timer.cancel()


class TransactionPhase(Enum):
    """How far a `transaction()` block has come."""

    NEW = "new"
    OPEN = "open"
    ENDING = "ending"
    ROLLED_BACK = "rolled back"
    COMMITTED = "committed"


@dataclass(slots=True)
class TransactionState:
    """The `transaction()` block of a run."""

    phase: TransactionPhase = TransactionPhase.NEW
    #: The store's part of the block, once it was entered.
    completion: Any = None
    #: As the store keeps it; None until `set_result`.
    result: bytes | None = None

    @property
    def is_open(self) -> bool:
        """Whether the task is inside the block."""
        return self.phase is TransactionPhase.OPEN

    @property
    def decides(self) -> bool:
        """Whether the claim is being ended by the commit, or was: its loss means nothing then."""
        return self.phase in {TransactionPhase.ENDING, TransactionPhase.COMMITTED}

    @property
    def committed(self) -> bool:
        """Whether the task has succeeded with it."""
        return self.phase is TransactionPhase.COMMITTED


@dataclass(slots=True, eq=False)
class Run:
    """A task, its claim, and what has happened to it here."""

    #: The child's own number for this claim.
    key: int
    task: Claimed
    type: TaskType[..., Any]
    #: The `Held.number` with which the supervisor was told.
    told: int
    #: As last known, monotonic; `deadline_ms` also looks at what the supervisor has sent since.
    lease_ends_ms: int
    context: RunContext | None = None
    #: When it was given to its executor, monotonic; and whether that was counted, where runs are counted.
    began_at_ns: int = 0
    noted: bool = False
    #: Whether its start was logged, so that its end is too.
    logged: bool = False
    #: The supervisor says that the claim is lost; set by the thread that listens to it, however busy the loop is.
    lost: bool = False
    started: bool = False
    #: When its function ended, monotonic: what is left to do is the worker's, and takes a moment. 0 until then.
    returned_at_ns: int = 0
    ending: Ending | None = None
    handle: asyncio.Task[None] | None = None
    #: Raises exceptions in the thread that its function runs in.
    thread: Interruption | None = None
    #: What its function returned.
    value: Any = None
    #: While the hooks of the app run, it has ended, with this change to settle.
    in_hooks: bool = False
    conclusion: Change | None = None
    limit: TimeLimit | None = None
    report: Report | None = None
    transaction: TransactionState | None = None
    #: What it raised, if its context keeps that.
    error: BaseException | None = None

    @property
    def clock(self) -> Clock:
        """By which its limits and its lease are kept."""
        return _CLOCK if self.context is None else self.context.clock

    @property
    def deadline_ms(self) -> int:
        """Monotonic; after it another worker may hold the task."""
        if self.context is not None and self.context.extended:
            told, deadline_ms = self.context.extended.get(partition_of(self.task.task_id), (0, 0))
            if self.told <= told and deadline_ms > self.lease_ends_ms and not self.lost:
                self.lease_ends_ms = deadline_ms
        return self.lease_ends_ms

    @property
    def settled(self) -> bool:
        """Whether it has succeeded by the commit of its own transaction."""
        return self.transaction is not None and self.transaction.committed

    def claim_lost(self) -> bool:
        """Whether another worker may hold the task now, by all that the supervisor has sent."""
        waits = CATCH_UP_WAITS
        while not (self.lost or self.ending is Ending.LOST):
            now_ms, deadline_ms = self.clock.monotonic_ms(), self.deadline_ms
            if now_ms < deadline_ms:
                return False
            if self.context is not None and self.context.forked:
                return False  # not known here: what needs a claim is refused by the store
            if self.context is None or deadline_ms <= self.context.caught_up_at_ms:
                return True
            # This process may have stood still: what was sent meanwhile has to be read before it is believed.
            if not waits:
                self.context.caught_up_at_ms = now_ms
                return True
            waits -= 1
            sleep(CATCH_UP_S / CATCH_UP_WAITS)
        return True

    def require_context(self, what: str) -> RunContext:
        """The context; `what` needs it."""
        if self.context is None:
            raise UsageError(f"{what} needs a store: it works in a task that a worker runs")
        return self.context

    def can_end_by(self, ending: Ending) -> bool:
        """Whether this concerns it: a claim that is being ended by a commit, or was, is not lost but used up."""
        return not (ending is Ending.LOST and self.transaction is not None and self.transaction.decides)

    def end(self, ending: Ending) -> None:
        """Asks the run to end: a coroutine gets a `CancelledError`, a thread an exception at its next bytecode.

        The first reason stays, save that a lost claim outweighs all. One that has not begun cannot catch
        anything, so it looks at `ending` itself.
        """
        if self.ending is ending:
            return
        if self.ending is None or ending is Ending.LOST:
            self.ending = ending
        inside_a_thread = self.thread is not None and self.thread.send(_RAISED[self.ending])
        if self.started and self.handle is not None and not inside_a_thread:
            self.handle.cancel()

    def raise_if_ending(self) -> None:
        """Raises in a thread what it would get if it had begun."""
        if self.ending is not None:
            raise _RAISED[self.ending]


#: Called on the event loop when a run has ended, with the change to settle if there is one.
Finish = Callable[[Run, Change | None], None]


class Starter(Protocol):
    """Where jobs run."""

    def start(self, job: Any, /) -> None:
        """Starts one."""
        ...


#: Makes what `ThreadExecutor` is, of the same arguments: a test runs plain functions in its own thread.
Threads = Callable[
    [asyncio.AbstractEventLoop, Callable[[Any], Any], Callable[[Any, Any], None], Callable[[Any, BaseException], Any]],
    Starter,
]


# -- the report ----------------------------------------------------------------------------------------------


class Report:
    """Progress and the last log lines of a run, bounded; written by the run, in any thread, and read by its child."""

    __slots__ = ("_lines", "_news", "_number", "_progress")

    def __init__(self) -> None:
        self._progress = Progress()
        #: With their sizes.
        self._lines: deque[tuple[LogLine, int]] = deque(maxlen=MAX_LINES)
        self._number = 0
        self._news = False

    def tell(self, done: float, total: float | None, note: str | None) -> None:
        """Sets the progress; the latest call wins."""
        for value in (done, total):
            if value is not None and not isinstance(value, (int, float)):
                raise BadOption(f"progress: {value!r} is not a number")
        progress = Progress(done, total, None if note is None else storable(str(note), MAX_NOTE_CHARS))
        try:
            _encode(progress)
        except (ValueError, OverflowError) as error:
            raise BadOption(f"progress: {error}") from None
        self._progress = progress
        self._news = True

    def add(self, at_ms: int, level: str, text: str) -> None:
        """One more log line."""
        line = LogLine(at_ms, storable(level, MAX_LEVEL_CHARS), storable(text, MAX_LINE_CHARS))
        self._lines.append((line, len(_encode(line))))
        self._number += 1
        self._news = True

    def log(self) -> tuple[LogLine, ...]:
        """The last lines, the first one first, under a mark if there were more."""
        kept: list[LogLine] = []
        size = 0
        for line, line_size in reversed(list(self._lines)):
            size += line_size
            if size > MAX_LOG_BYTES:
                break
            kept.append(line)
        left_out = self._number - len(kept)
        if left_out:
            kept.append(LogLine(kept[-1].at_ms, "", f"… {left_out} line{'s' * (left_out > 1)} left out"))
        return tuple(reversed(kept))

    def news(self) -> bytes | None:
        """All of it as JSON, if there is something new since this was last asked."""
        if not self._news:
            return None
        self._news = False
        return self.all()

    def all(self) -> bytes:
        """All of it as JSON."""
        return _encode(msgspec.structs.replace(self._progress, log=self.log()))


def report_of(run: Run) -> Report:
    """The report of a run, begun when it is first needed."""
    if run.report is None:
        run.report = Report()
    return run.report


# -- arguments and results, signed and encrypted as the app says -----------------------------------------------


def opened_arguments(run: Run) -> bytes:
    """The arguments of a task, decrypted; `NotGenuine` or `UnknownKey` if they cannot be."""
    crypto, payload = run.type.crypto, run.task.payload
    if crypto is not None:
        return crypto.opened(run.task)
    if is_encrypted(payload):
        raise needs_key(payload, f"the arguments of {run.task.type}")
    return payload


#: Types of results that JSON does not have, and what they arrive as without a return annotation.
_CHANGED: Final[dict[type, str]] = {set: "a list", frozenset: "a list", tuple: "a list", bytes: "base64 text"}


def _warn_of_change(task_type: TaskType[..., Any], value: Any) -> None:
    """Once for each type in each process, as one line is enough to find the function."""
    task_type.codec.may_change_results = False
    kind = type(value).__name__
    with shielded():
        _log.warning(
            "%s returned a %s, which arrives as %s: annotate what it returns (`-> %s`), or return a value of JSON",
            *(task_type.name, kind, _CHANGED[type(value)], kind),
        )


def encoded_result(run: Run, value: Any) -> bytes:
    """What a function has returned, as the store keeps it; None is encrypted as any other result is."""
    if type(value) in _CHANGED and run.type.codec.may_change_results:
        _warn_of_change(run.type, value)
    result = _NULL if value is None else run.type.codec.encode_result(value)
    return result if run.type.crypto is None else run.type.crypto.result(run.task, result)
