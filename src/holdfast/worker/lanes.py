"""Where tasks run: coroutines on the event loop, plain functions in threads."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast.core.lifecycle import Change
from holdfast.worker.run import Run

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

#: Called on the event loop when a run has ended.
Finish = Callable[[Run, Change | None], None]


class LoopLane:
    """Runs coroutines on the event loop, an asyncio task each."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        perform: Callable[[Run], Coroutine[Any, Any, Change | None]],
        finish: Finish,
    ) -> None:
        self._create_task = loop.create_task
        self._perform = perform
        self._finish = finish

    def start(self, run: Run) -> None:
        """Starts it with the next turn of the event loop."""
        run.handle = self._create_task(self._run(run))

    async def _run(self, run: Run) -> None:
        self._finish(run, await self._perform(run))


class ThreadLane(Generic[Job, Outcome]):
    """Does jobs in threads, made when needed and kept; `finish` is called on the event loop.

    Threads that finish close together wake the event loop once. They are daemons: one that never
    returns cannot keep the process from ending.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        perform: Callable[[Job], Outcome],
        finish: Callable[[Job, Outcome], None],
    ) -> None:
        self._loop = loop
        self._perform = perform
        self._finish = finish
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._ended: deque[tuple[Job, Outcome]] = deque()
        self._collecting = False
        self._busy = 0
        self._threads = 0
        self._context = contextvars.copy_context()

    def start(self, job: Job) -> None:
        """Starts it in a free thread; there is one for every slot."""
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"holdfast-task-{self._threads}", daemon=True).start()
        self._waiting.put(job)

    def _work(self) -> None:
        while True:
            job = self._waiting.get()
            self._ended.append((job, self._context.copy().run(self._perform, job)))
            del job  # nothing of the task stays alive in an idle thread
            if not self._collecting:
                self._collecting = True
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._collecting = False  # first: what ends from now on calls again
        while self._ended:
            self._busy -= 1
            self._finish(*self._ended.popleft())
