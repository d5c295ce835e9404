"""One claimed task on its way through a child."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.core.task import Claimed
from holdfast.worker.loading import TaskType

if TYPE_CHECKING:
    from holdfast.worker.context import RunningTask


class Ending(Enum):
    """Why a run was asked to end before its time."""

    CANCELLED = "cancelled"  # somebody asked for it
    LOST = "lost"  # the claim has passed: nothing may be settled
    SHUTDOWN = "shutdown"  # handed back, another worker runs it


class Run:
    """A task, its claim, and what has happened to it here."""

    __slots__ = ("deadline_ms", "ending", "facade", "handle", "key", "progress", "started", "task", "told", "type")

    def __init__(self, key: int, task: Claimed, task_type: TaskType, told: int, deadline_ms: int) -> None:
        #: The child's own number for this claim.
        self.key = key
        self.task = task
        self.type = task_type
        #: The `Held.number` with which the supervisor was told.
        self.told = told
        #: Monotonic; after it another worker may hold the task.
        self.deadline_ms = deadline_ms
        self.started = False
        self.ending: Ending | None = None
        self.handle: asyncio.Task[None] | None = None
        self.progress: bytes | None = None
        self.facade: RunningTask | None = None

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
