"""One claimed task on its way through a child."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.task import Claimed
from holdfast.errors import UsageError
from holdfast.stores.contract import Store
from holdfast.worker.loading import TaskType

if TYPE_CHECKING:
    from holdfast.worker.context import RunningTask
    from holdfast.worker.transaction import Transaction

T = TypeVar("T")


class Ending(Enum):
    """Why a run was asked to end before its time."""

    CANCELLED = "cancelled"  # somebody asked for it
    LOST = "lost"  # the claim has passed: nothing may be settled
    SHUTDOWN = "shutdown"  # handed back, another worker runs it


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all runs of a child share."""

    store: Store
    #: The child's own event loop, where threads have their store calls made.
    loop: asyncio.AbstractEventLoop
    #: How long a claim lasts without a heartbeat.
    lease_ms: int = 30_000

    def waited(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of a step in the loop, for a thread."""
        return asyncio.run_coroutine_threadsafe(step, self.loop).result()


class Run:
    """A task, its claim, and what has happened to it here."""

    __slots__ = (
        "deadline_ms",
        "ending",
        "facade",
        "handle",
        "key",
        "progress",
        "started",
        "task",
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
        self.started = False
        self.ending: Ending | None = None
        self.handle: asyncio.Task[None] | None = None
        self.progress: bytes | None = None
        self.facade: RunningTask | None = None
        #: The block that the task has entered to finish itself.
        self.transaction: Transaction | None = None

    def at_work(self, what: str) -> Workplace:
        """Where it runs; `what` needs that."""
        if self.workplace is None:
            raise UsageError(f"{what} needs a store: it works in a task that a worker runs")
        return self.workplace

    def heeds(self, ending: Ending) -> bool:
        """Whether this concerns it: a claim that is being ended by a commit, or was, is not lost but used up."""
        return not (ending is Ending.LOST and self.transaction is not None and self.transaction.decides)

    def end(self, ending: Ending) -> None:
        """Asks the run to end: a coroutine gets a `CancelledError`, a thread finds out when it asks.

        The first reason stays, save that a lost claim outweighs all. A coroutine that has not begun
        cannot catch anything, so it looks at `ending` itself.
        """
        if self.ending is ending:
            return
        if self.ending is None or ending is Ending.LOST:
            self.ending = ending
        if self.started and self.handle is not None:
            self.handle.cancel()
