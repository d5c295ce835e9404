"""What a child does beside its tasks: ends runs that must not go on, reports to the supervisor, counts runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Final

from holdfast.clock import Clock
from holdfast.core.durations import format_ms
from holdfast.observe.metrics import Tally
from holdfast.observe.observed_store import ObservedStore
from holdfast.observe.runs import RunTally
from holdfast.stores.contract import Store
from holdfast.worker.child.execute import hung
from holdfast.worker.child.loop import Fetcher
from holdfast.worker.child.run import Ending
from holdfast.worker.child.slots import Slots
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import Counted, FromChild, ProgressReport, Recycle, Reserving

_log = logging.getLogger("holdfast.worker")

LONGEST_INTERVAL_MS = 1_000
#: A run's report is written this often at most.
REPORT_MS = 1_000
#: How often at most the supervisor is told that the store answers.
RESERVING_MS = 1_000
#: A message is cut off after the report with which it reaches this.
MESSAGE_BYTES = 1024 * 1024
_CATCH_UP_S = 0.1
#: A run whose function has returned is ended by the watchdog after a lease, but not sooner than this.
SHORTEST_RETURN_MS: Final = 5_000

REPORT_S: Final = 1.0

Send = Callable[[FromChild], Awaitable[None]]


def longest_return_ms(lease_ms: int) -> int:
    """How long a run may take to end after its function has returned: for its result or error to be read."""
    return max(lease_ms, SHORTEST_RETURN_MS)


class Watchdog:
    """Ends runs whose claims were not renewed in time, even when the supervisor is stopped; passes on reports."""

    def __init__(
        self,
        slots: Slots,
        fetcher: Fetcher,
        lease_ms: int,
        clock: Clock,
        send: Send,
        *,
        return_limit_ms: int | None = None,
    ) -> None:
        self._slots = slots
        self._fetcher = fetcher
        self._interval_s = min(LONGEST_INTERVAL_MS, lease_ms // 6) / 1000
        self._clock = clock
        self._send = send
        self._reports_at_ms = 0
        self._reserving_at_ms = 0
        self._reserved_at_ms: int | None = None
        self._return_limit_ms = return_limit_ms or longest_return_ms(lease_ms)
        #: Since when this process has not stood still: until then no run could end.
        self._awake_since_ns = monotonic_ns()
        self._recycling = False

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            asleep_at_ms = self._clock.monotonic_ms()
            await asyncio.sleep(self._interval_s)
            if self._clock.monotonic_ms() - asleep_at_ms > 2_000 * self._interval_s:
                # This process stood still: what the supervisor has sent meanwhile comes first.
                await asyncio.sleep(min(_CATCH_UP_S, self._interval_s))
                self._awake_since_ns = monotonic_ns()
            self._end_expired()
            await self._end_hanging()
            await self._fetcher.check_recycling()
            await self._send_progress()
            await self._send_reserving()

    def _end_expired(self) -> None:
        expired = self._slots.expired(self._clock.monotonic_ms())
        for run in self._slots.end(expired, Ending.LOST):
            _log.warning("task %s: its lease expired without a heartbeat; stopping it", run.task.task_id)

    async def _end_hanging(self) -> None:
        """A run that hangs after its function has returned fails, and its slot is free again.

        Its thread may hang for ever, so the process is recycled.
        """
        since_ns = monotonic_ns() - self._return_limit_ms * 1_000_000
        if since_ns < self._awake_since_ns:
            since_ns = 0
        for run in self._slots.hanging(since_ns):
            _log.error(
                "task %s: its function has returned, but its run did not end within %s; it fails",
                run.task.task_id,
                format_ms(self._return_limit_ms),
            )
            self._slots.finish(run, hung(run, self._return_limit_ms))
            if run.handle is None and not self._recycling:
                self._recycling = True
                await self._send(Recycle("has a thread that hangs"))

    async def _send_progress(self) -> None:
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
                    await self._send(ProgressReport(latest))
                    latest, size = {}, 0
        if latest:
            await self._send(ProgressReport(latest))

    async def _send_reserving(self) -> None:
        now_ms, reserved_at_ms = self._clock.monotonic_ms(), self._fetcher.reserved_at_ms
        if reserved_at_ms is None or reserved_at_ms == self._reserved_at_ms or now_ms < self._reserving_at_ms:
            return
        self._reserving_at_ms = now_ms + RESERVING_MS
        self._reserved_at_ms = reserved_at_ms
        await self._send(Reserving(reserved_at_ms))


# -- metrics of the runs ---------------------------------------------------------------------------------------


class RunMetrics:
    """Beside the slots of a child, and between it and its store."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._tally = Tally()
        self._runs = RunTally(self._tally)
        self._slots: Slots | None = None

    @classmethod
    def by(cls, options: WorkerOptions, send: Send) -> RunMetrics | None:
        """None where there is nowhere to read it."""
        return cls(send) if options.measured else None

    def observed(self, store: Store) -> Store:
        """The store, its calls counted too."""
        return ObservedStore(store, self._tally)

    def watch(self, slots: Slots) -> None:
        """Counts what runs here."""
        self._slots = slots
        slots.count = self._runs.note_ended

    async def send(self, message: FromChild) -> None:
        """Counts, then sends: called at the end of every exchange, before the new tasks are started."""
        self._runs.flush()
        await self._send(message)

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self.report()

    async def report(self) -> None:
        """Sends what was counted since the last time, if there is something."""
        if self._slots is not None:
            self._runs.note_begun(self._slots.running.values())
        self._runs.flush()
        if counts := self._tally.take():
            await self._send(Counted(counts))
