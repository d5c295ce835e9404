"""What stands in the store: one look every few seconds, however often it is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.clock import Clock
from holdfast.core.task import State
from holdfast.errors import HoldfastError
from holdfast.observe.metrics import (
    MAX_PAIRS,
    OTHER,
    QUEUE_OLDEST,
    QUEUE_PAUSED,
    QUEUE_TASKS,
    SLOTS,
    STORE_UP,
    WORKERS,
    Metric,
)
from holdfast.stores.contract import QueueCounts, Store, WorkerRecord

_log = logging.getLogger("holdfast.observe")

#: So old may an answer be.
LOOK_MS: Final = 5_000
#: A scrape waits this long for new values; then it gets the previous ones, unless they are older than `TOO_OLD_MS`.
LOOK_DEADLINE_S: Final = 1.0
TOO_OLD_MS: Final = 60_000

Gauge = tuple[Metric, tuple[str, ...], float]


class BacklogReading(msgspec.Struct, frozen=True):
    """One look at the store."""

    at_ms: int  # monotonic
    queues: Sequence[QueueCounts]
    workers: Sequence[WorkerRecord]


class Backlog:
    """Looks at a store for those who scrape."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: BacklogReading | None = None
        self._failed = False
        self._looking: asyncio.Task[None] | None = None
        self._names: set[str] = set()

    async def gauges(self) -> list[Gauge]:
        """What there is to tell now; when the store does not answer for long, only that."""
        if self._age_ms() >= LOOK_MS:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
            await asyncio.wait([self._looking], timeout=LOOK_DEADLINE_S)
        up = (STORE_UP, (), float(self._looking is None and not self._failed))
        if self._seen is None or self._age_ms() >= TOO_OLD_MS:
            return [up]
        return [up, *self._of_queues(self._seen.queues), *_of_workers(self._seen.workers)]

    async def close(self) -> None:
        """Ends the look that may be under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _age_ms(self) -> int:
        return TOO_OLD_MS if self._seen is None else self._clock.monotonic_ms() - self._seen.at_ms

    async def _look(self) -> None:
        try:
            at_ms = self._clock.monotonic_ms()
            self._seen = BacklogReading(at_ms, await self._store.counts(), await self._store.workers())
            self._failed = False
        except HoldfastError as error:
            self._failed = True
            _log.warning("metrics: the store could not be looked at: %s", error)
        finally:
            self._looking = None

    # -- bounded --------------------------------------------------------------------------------------------

    def _of_queues(self, queues: Sequence[QueueCounts]) -> Iterator[Gauge]:
        tasks: dict[tuple[str, State], int] = {}
        oldest_ms: dict[str, int] = {}
        paused: dict[str, bool] = {}
        for counts in queues:
            queue = self._bounded(counts.queue)
            for state in State:
                tasks[queue, state] = tasks.get((queue, state), 0) + counts.states.get(state, 0)
            oldest_ms[queue] = max(oldest_ms.get(queue, 0), counts.oldest_ready_ms or 0)
            paused[queue] = paused.get(queue, False) or counts.paused
        yield from ((QUEUE_TASKS, (queue, state.value), number) for (queue, state), number in tasks.items())
        yield from ((QUEUE_OLDEST, (queue,), age_ms / 1000) for queue, age_ms in oldest_ms.items())
        yield from ((QUEUE_PAUSED, (queue,), float(is_paused)) for queue, is_paused in paused.items())

    def _bounded(self, queue: str) -> str:
        """The first ones that were seen keep their names; all others are one."""
        if queue not in self._names:
            if len(self._names) >= MAX_PAIRS:
                return OTHER
            self._names.add(queue)
        return queue


def _of_workers(workers: Sequence[WorkerRecord]) -> Iterator[Gauge]:
    alive = [worker for worker in workers if worker.alive]
    for status in ("running", "draining"):
        yield WORKERS, (status,), sum(worker.status == status for worker in alive)
    yield WORKERS, ("silent",), len(workers) - len(alive)
    busy = sum(worker.running for worker in alive)
    yield SLOTS, ("busy",), busy
    yield SLOTS, ("free",), max(0, sum(worker.processes * worker.concurrency for worker in alive) - busy)
