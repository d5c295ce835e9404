"""What a child does every now and then: notice claims that ran out, pass on progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.clock import Clock
from holdfast.worker.messages import Progress
from holdfast.worker.run import Ending
from holdfast.worker.slots import Slots

_log = logging.getLogger("holdfast.worker")

LONGEST_INTERVAL_MS = 1_000
_CATCH_UP_S = 0.1


class Pulse:
    """Ends runs whose claims were not extended in time, even when the supervisor itself is stopped."""

    def __init__(self, slots: Slots, lease_ms: int, clock: Clock, tell: Callable[[Progress], Awaitable[None]]) -> None:
        self._slots = slots
        self._interval_s = min(LONGEST_INTERVAL_MS, lease_ms // 6) / 1000
        self._clock = clock
        self._tell = tell

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            asleep_at_ms = self._clock.monotonic_ms()
            await asyncio.sleep(self._interval_s)
            if self._clock.monotonic_ms() - asleep_at_ms > 2_000 * self._interval_s:
                # This process stood still: what the supervisor said meanwhile comes first.
                await asyncio.sleep(min(_CATCH_UP_S, self._interval_s))
            self._end_overdue()
            await self._pass_on_progress()

    def _end_overdue(self) -> None:
        overdue = self._slots.overdue(self._clock.monotonic_ms())
        for run in self._slots.end(overdue, Ending.LOST):
            _log.warning("task %s: its lease ran out without a heartbeat; stopping it", run.task.task_id)

    async def _pass_on_progress(self) -> None:
        latest: dict[int, bytes] = {}
        for key, run in self._slots.running.items():
            if run.progress is not None:
                latest[key], run.progress = run.progress, None
        if latest:
            await self._tell(Progress(latest))
