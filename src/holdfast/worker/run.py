"""One claimed task on its way through a child."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.task import Claimed
from holdfast.errors import ClaimLost, TimedOut, UsageError
from holdfast.shield import shielded
from holdfast.stores.contract import Store
from holdfast.worker.loading import TaskType

if TYPE_CHECKING:
    from holdfast.worker.context import RunningTask
    from holdfast.worker.interruption import Interruption
    from holdfast.worker.report import Report
    from holdfast.worker.time_limit import TimeLimit
    from holdfast.worker.transaction import Transaction

T = TypeVar("T")


class Ending(Enum):
    """Why a run was asked to end before its time."""

    CANCELLED = "cancelled"  # somebody asked for it
    LOST = "lost"  # the claim has passed: nothing may be settled
    SHUTDOWN = "shutdown"  # handed back, another worker runs it
    TIMED_OUT = "timed_out"  # its time limit has passed


#: What is raised in a thread; a coroutine always gets a `CancelledError`.
_RAISED: dict[Ending, type[BaseException]] = {
    Ending.CANCELLED: asyncio.CancelledError,
    Ending.LOST: ClaimLost,
    Ending.SHUTDOWN: asyncio.CancelledError,
    Ending.TIMED_OUT: TimedOut,
}


@dataclass(slots=True)
class Workplace:
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

    def waited(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of a step in the loop, for a thread; whatever comes from outside waits for its end."""
        try:
            with shielded():
                return asyncio.run_coroutine_threadsafe(step, self.loop).result()
        finally:
            step.close()  # it has ended, or was never begun


class Run:
    """A task, its claim, and what has happened to it here."""

    __slots__ = (
        "began_at_ns",
        "deadline_ms",
        "ending",
        "facade",
        "handle",
        "key",
        "limit",
        "noted",
        "report",
        "started",
        "task",
        "thread",
        "told",
        "transaction",
        "type",
        "workplace",
    )

    def __init__(
        self,
        key: int,
        task: Claimed,
        task_type: TaskType,
        told: int,
        deadline_ms: int,
        workplace: Workplace | None = None,
        began_at_ns: int = 0,
    ) -> None:
        #: The child's own number for this claim.
        self.key = key
        self.task = task
        self.type = task_type
        #: The `Held.number` with which the supervisor was told.
        self.told = told
        #: Monotonic; after it another worker may hold the task.
        self.deadline_ms = deadline_ms
        self.workplace = workplace
        #: When it was given to its lane, monotonic; and whether that was counted, where somebody counts.
        self.began_at_ns = began_at_ns
        self.noted = False
        self.started = False
        self.ending: Ending | None = None
        self.handle: asyncio.Task[None] | None = None
        #: The way into the thread that its function runs in.
        self.thread: Interruption | None = None
        self.limit: TimeLimit | None = None
        self.report: Report | None = None
        self.facade: RunningTask | None = None
        #: The block that the task has entered to finish itself.
        self.transaction: Transaction | None = None

    def at_work(self, what: str) -> Workplace:
        """Where it runs; `what` needs that."""
        if self.workplace is None:
            raise UsageError(f"{what} needs a store: it works in a task that a worker runs")
        return self.workplace

    @property
    def settled(self) -> bool:
        """Whether it has succeeded by the commit of its own transaction."""
        return self.transaction is not None and self.transaction.committed

    def heeds(self, ending: Ending) -> bool:
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
