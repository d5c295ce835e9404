"""The slots of a child: what runs, what has finished, what may be taken on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.core.policy import DEFAULT_POLICY
from holdfast.core.task import Claimed, Hold
from holdfast.worker.lanes import Finish
from holdfast.worker.run import Ending, Run

#: How long a finished task waits for others to be settled with.
LINGER_S = 0.002


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
        self.finished: list[Change] = []
        #: Keys of the runs that have ended, with a change or without.
        self.ended: list[int] = []
        #: Told of each run that has ended, where somebody counts them.
        self.count: Finish | None = None
        #: What the finished ones have said and nobody has written down yet.
        self.last_words: list[Hold] = []
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
        """So many at once are worth an exchange without waiting for more.

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
        self.ended.append(run.key)
        if self.count is not None:
            self.count(run, change)
        if change is not None:
            self.finished.append(change)
            if run.report is not None and change.error is None:  # an error takes the log with it
                self.last_words.append(Hold(change.task_id, run.task.token, run.report.all()))
        if run.task.policy is not DEFAULT_POLICY or run.ending is not None:
            self._lift_limits(run)
        if self._sleeper is not None:
            self._consider_waking()

    def _lift_limits(self, run: Run) -> None:
        if run.limit is not None:
            run.limit.stop()
        if run.task.policy.hard_timeout_ms is not None or run.ending is not None:
            self._on_end(run.key)

    def take_finished(self) -> tuple[list[Change], list[int]]:
        """The changes to settle now, and the keys of all runs that have ended."""
        taken = self.finished, self.ended
        self.finished, self.ended = [], []
        return taken

    def take_last_words(self) -> list[Hold]:
        """What is to be written down before the finished runs are settled."""
        taken, self.last_words = self.last_words, []
        return taken

    def resize(self, size: int) -> None:
        """So many at once from now on; what runs over that goes on."""
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
        """Waits until all runs have ended, so long at most."""
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
        runs = [run for key in keys if (run := self.running.get(key)) is not None and run.heeds(ending)]
        for run in runs:
            run.end(ending)
        return runs

    def extended(self, told: int, deadline_ms: int) -> None:
        """The claims told up to this message now last until then."""
        for run in self.running.values():
            if run.told <= told and run.ending is not Ending.LOST:
                run.deadline_ms = deadline_ms

    def overdue(self, now_ms: int) -> list[int]:
        """Keys of runs whose claims were not extended in time."""
        return [key for key, run in self.running.items() if run.deadline_ms <= now_ms and run.ending is not Ending.LOST]

    def abandon(self, *, release: bool) -> int:
        """Forgets what still runs, handing it back if asked; how many there were."""
        left = [run for run in self.running.values() if run.ending is not Ending.LOST]
        self.running.clear()
        if release:
            self.hand_back((run.key, run.task) for run in left)
        self.wake()
        return len(left)

    def hand_back(self, claims: Iterable[tuple[int, Claimed]]) -> None:
        """These are settled as released."""
        for key, task in claims:
            self.ended.append(key)
            self.finished.append(lifecycle.release(task.task_id, task.token))
