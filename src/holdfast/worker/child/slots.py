"""The slots of a child: the runs in them, the finished runs to settle, the room for more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Event
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.task import Claimed, Failure, Hold
from holdfast.stores.contract import MAX_BATCH
from holdfast.worker.child.run import Ending, Finish, Run
from holdfast.worker.protocol import Ended

#: How long a finished task waits for others to be settled with.
LINGER_S: Final = 0.002
#: What one exchange settles at most, by its results and errors; one that is larger goes alone.
MAX_SETTLE_BYTES: Final = 4 * 1024 * 1024


#: A run that has ended and is not settled yet: its key, its task, and the change to settle if there is one.
End = tuple[int, Claimed, Change | None]

_ACK: Final = Event.ACK
_RELEASE: Final = Event.RELEASE


class Slots:
    """Runs by key, and the changes that wait to be settled."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        size: int,
        *,
        slow_start: bool = False,
        on_end: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._loop = loop
        self._size = size
        #: Told the key of each run that is over and for which this process might have been killed.
        self._on_end = on_end
        #: How many may run now. After a crash it grows from 1, so that a task that kills its process
        #: does not drag its neighbours into the dead letters.
        self.limit = 1 if slow_start else size
        self.running: dict[int, Run] = {}
        self.ended: deque[End] = deque()
        #: What was not finished when the worker stopped. Another worker may have it when nothing of it runs here any
        #: more, not even a process that it has started: so it is released after the end of this process.
        self.left: list[Claimed] = []
        #: Called with each run that has ended, where runs are counted.
        self.count: Finish | None = None
        #: Called with each run that has ended and is to be logged, where runs are.
        self.log: Finish | None = None
        #: Reports of finished runs that are still to be written.
        self.final_logs: list[Hold] = []
        #: How many tasks the last exchange brought.
        self.last_batch = 0
        self._sleeper: asyncio.Future[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None

    @property
    def free(self) -> int:
        """How many tasks may be taken on."""
        return self.limit - len(self.running)

    @property
    def enough(self) -> int:
        """How many tasks at once are worth an exchange without waiting for more.

        Half of the last batch: then its tasks are short. Where they trickle in, an eighth of the slots, so
        that a worker with long tasks does not spend itself on exchanges of one.
        """
        return max(1, self.limit // 8, self.last_batch // 2)

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits to be settled."""
        return not self.running and not self.ended

    def finish(self, run: Run, change: Change | None) -> None:
        """A run has ended; with a change to settle, or without."""
        if self.running.pop(run.key, None) is None:  # was abandoned
            return
        if self.limit < self._size:
            self.limit = min(self.limit * 2, self._size)
        if change is not None and change.event is _RELEASE:
            self.left.append(run.task)
        else:
            self.ended.append((run.key, run.task, change))
        try:
            if self.count is not None:
                self.count(run, change)
            if self.log is not None and (run.logged or change is None or change.event is not _ACK):
                self.log(run, change)
            if run.report is not None and change is not None and change.error is None:  # an error takes the log with it
                self.final_logs.append(Hold(change.task_id, run.task.token, run.report.all()))
            if run.task.policy is not DEFAULT_POLICY or run.ending is not None:
                self._lift_limits(run)
        finally:
            if self._sleeper is not None:
                self._consider_waking()

    def _lift_limits(self, run: Run) -> None:
        if run.limit is not None:
            run.limit.stop()
        if run.task.policy.hard_timeout_ms is not None or run.ending is not None:
            self._on_end(run.key)

    def take_ended(self) -> list[End]:
        """The runs to settle now: as many as one exchange may have, in number and in bytes."""
        size = 0
        for count, (_, _, change) in enumerate(self.ended):
            if change is not None:
                size += len(change.result or b"") if change.error is None else _size_of(change.error)
            if count and (size > MAX_SETTLE_BYTES or count == MAX_BATCH):
                return [self.ended.popleft() for _ in range(count)]
        taken = list(self.ended)
        self.ended.clear()
        return taken

    def take_final_logs(self) -> list[Hold]:
        """The reports to write before the finished runs are settled."""
        taken, self.final_logs = self.final_logs, []
        return taken

    def resize(self, size: int) -> None:
        """Runs this many at once from now on; more that run already go on."""
        self.limit = size if self.limit == self._size else min(self.limit, size)
        self._size = size
        self.wake()

    # -- waiting --------------------------------------------------------------------------------------------

    async def until_woken(self) -> None:
        """Sleeps until `wake`, or until enough runs have finished to settle them."""
        self._sleeper = self._loop.create_future()
        try:
            if self.ended:
                self._consider_waking()
            await self._sleeper
        finally:
            self._sleeper = None
            if self._lingering is not None:
                self._lingering.cancel()
                self._lingering = None

    async def until_none_runs(self, timeout_s: float) -> None:
        """Waits until all runs have ended, or for this long."""
        deadline = self._loop.time() + timeout_s
        while self.running and self._loop.time() < deadline:  # noqa: ASYNC110  (for a moment, when all ends)
            await asyncio.sleep(timeout_s / 20)

    def wake(self) -> None:
        """Ends the sleep, if there is one."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def _consider_waking(self) -> None:
        if not self.running or len(self.ended) >= self.enough:
            self.wake()
        elif self._lingering is None:
            self._lingering = self._loop.call_later(LINGER_S, self.wake)

    # -- ending runs early ----------------------------------------------------------------------------------

    def end(self, keys: Iterable[int], ending: Ending) -> list[Run]:
        """Asks those of these runs that are still there to end, and gives them."""
        runs = [run for key in keys if (run := self.running.get(key)) is not None and run.can_end_by(ending)]
        for run in runs:
            run.end(ending)
        return runs

    def expired(self, now_ms: int) -> list[int]:
        """Keys of runs whose claims were not renewed in time."""
        return [key for key, run in self.running.items() if run.deadline_ms <= now_ms and run.ending is not Ending.LOST]

    def abandon(self) -> None:
        """Forgets what still runs: it is `left`, but for lost claims and for what has ended but for its hooks."""
        for run in [run for run in self.running.values() if run.in_hooks]:
            self.finish(run, run.conclusion)
        self.left += [run.task for run in self.running.values() if not (run.lost or run.ending is Ending.LOST)]
        self.running.clear()
        self.wake()

    def release(self, claims: Iterable[tuple[int, Claimed]]) -> None:
        """These were never started, and are settled as released."""
        for key, task in claims:
            self.ended.append((key, task, lifecycle.release(task.task_id, task.token)))

    # -- runs that do not end -------------------------------------------------------------------------------

    def hanging(self, since_ns: int) -> list[Run]:
        """Runs that should be finished: their functions returned before this time, or their asyncio tasks are done."""
        return [
            run
            for run in list(self.running.values())
            if 0 < run.returned_at_ns < since_ns or (run.handle is not None and run.handle.done())
        ]


def _size_of(error: Failure) -> int:
    return len(error.message) + len(error.traceback) + sum(len(line.text) for line in error.log)


# -- telling the supervisor which runs are over ----------------------------------------------------------------


class EndedRuns:
    """Reports ended runs before their settlement: no child is killed for one while the store is away."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[Ended], Awaitable[None]]) -> None:
        self._loop = loop
        self._tell = tell
        self._keys: list[int] = []
        self._telling: asyncio.Task[None] | None = None

    def note(self, key: int) -> None:
        """A run is over; those of one turn of the event loop go in one message."""
        self._keys.append(key)
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        while self._keys:
            keys, self._keys = self._keys, []
            await self._tell(Ended(keys))
        self._telling = None
