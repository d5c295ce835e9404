"""What a child does every now and then: notice claims that ran out, pass on reports, tell that the store answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.clock import Clock
from holdfast.worker.fetch import Fetcher
from holdfast.worker.messages import FromChild, Progress, Reserving
from holdfast.worker.run import Ending
from holdfast.worker.slots import Slots

_log = logging.getLogger("holdfast.worker")

LONGEST_INTERVAL_MS = 1_000
#: A run's report is written this often at most.
REPORT_MS = 1_000
#: How often the supervisor is told that the store answers.
RESERVING_MS = 1_000
#: A message is cut off after the report with which it reaches this.
MESSAGE_BYTES = 1024 * 1024
_CATCH_UP_S = 0.1


class Pulse:
    """Ends runs whose claims were not extended in time, even when the supervisor itself is stopped."""

    def __init__(
        self,
        slots: Slots,
        fetcher: Fetcher,
        lease_ms: int,
        clock: Clock,
        tell: Callable[[FromChild], Awaitable[None]],
    ) -> None:
        self._slots = slots
        self._fetcher = fetcher
        self._interval_s = min(LONGEST_INTERVAL_MS, lease_ms // 6) / 1000
        self._clock = clock
        self._tell = tell
        self._reports_at_ms = 0
        self._reserving_at_ms = 0
        self._reserved_at_ms: int | None = None

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            asleep_at_ms = self._clock.monotonic_ms()
            await asyncio.sleep(self._interval_s)
            if self._clock.monotonic_ms() - asleep_at_ms > 2_000 * self._interval_s:
                # This process stood still: what the supervisor said meanwhile comes first.
                await asyncio.sleep(min(_CATCH_UP_S, self._interval_s))
            self._end_overdue()
            await self._fetcher.look_for_wear()
            await self._pass_on_reports()
            await self._tell_of_reserving()

    def _end_overdue(self) -> None:
        overdue = self._slots.overdue(self._clock.monotonic_ms())
        for run in self._slots.end(overdue, Ending.LOST):
            _log.warning("task %s: its lease ran out without a heartbeat; stopping it", run.task.task_id)

    async def _pass_on_reports(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._reports_at_ms:
            return
        self._reports_at_ms = now_ms + REPORT_MS
        latest: dict[int, bytes] = {}
        size = 0
        for key, run in list(self._slots.running.items()):
            if run.report is not None and (news := run.report.news()) is not None:
                latest[key] = news
                size += len(news)
                if size >= MESSAGE_BYTES:
                    await self._tell(Progress(latest))
                    latest, size = {}, 0
        if latest:
            await self._tell(Progress(latest))

    async def _tell_of_reserving(self) -> None:
        now_ms, reserved_at_ms = self._clock.monotonic_ms(), self._fetcher.reserved_at_ms
        if reserved_at_ms is None or reserved_at_ms == self._reserved_at_ms or now_ms < self._reserving_at_ms:
            return
        self._reserving_at_ms = now_ms + RESERVING_MS
        self._reserved_at_ms = reserved_at_ms
        await self._tell(Reserving(reserved_at_ms))
