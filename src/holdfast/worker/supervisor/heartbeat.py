"""Renews the claims of all children, and tells the children of lost claims and cancellations."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from holdfast.clock import Clock
from holdfast.core.ids import partition_of
from holdfast.core.task import Extension, Hold
from holdfast.errors import HoldfastError
from holdfast.stores.contract import MAX_BATCH, Store, WorkerRecord
from holdfast.worker import protocol
from holdfast.worker.backoff import Backoff
from holdfast.worker.protocol import HeldTask
from holdfast.worker.supervisor.pool import ChildPool
from holdfast.worker.supervisor.process import ChildProcess

_log = logging.getLogger("holdfast.worker")

#: How often in a lease to look for claims in a partition that had none before.
_LOOKS_PER_LEASE: Final = 6


class Heartbeat:
    """Announces the worker each third of a lease, and extends its claims, those of each partition by itself.

    A partition that does not answer holds up neither the claims in the others nor the announcement.
    """

    def __init__(
        self,
        store: Store,
        lease_ms: int,
        clock: Clock,
        pool: ChildPool,
        record: Callable[[], WorkerRecord],
    ) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._clock = clock
        self._pool = pool
        self._record = record
        self._opened_at_ms = clock.monotonic_ms()
        self._announcing = _Rounds(self._announce, lease_ms, clock)
        #: By partition in which there was ever a claim, each with the asyncio task in which it runs.
        self._renewals: dict[int, tuple[_Rounds, asyncio.Task[None]]] = {}

    @property
    def succeeded_at_ms(self) -> int:
        """When the store last took an announcement of the worker, or renewed all claims in one of its partitions."""
        rounds = [self._announcing, *(renewal for renewal, _ in self._renewals.values())]
        return max(self._opened_at_ms, *(each.succeeded_at_ms or 0 for each in rounds))

    def nudge(self) -> None:
        """There is progress to write: do it now."""
        for renewal, _ in self._renewals.values():
            renewal.nudge()

    async def run(self) -> None:
        """Goes on until cancelled; through an outage it tries more often, since leases are running out."""
        announcing = asyncio.create_task(self._announcing.run())
        try:
            while True:
                self._begin_renewals()
                running = [announcing, *(task for _, task in self._renewals.values())]
                done, _ = await asyncio.wait(
                    running, timeout=self._lease_ms / _LOOKS_PER_LEASE / 1000, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()  # they go on until cancelled: it is an error
        finally:
            for task in (announcing, *(task for _, task in self._renewals.values())):
                task.cancel()

    def _begin_renewals(self) -> None:
        held = {partition_of(task.task_id) for child in self._pool.children() for task in child.holds.values()}
        for partition in held - self._renewals.keys():
            rounds = _Rounds(partial(self._renew, partition), self._lease_ms, self._clock)
            self._renewals[partition] = rounds, asyncio.create_task(rounds.run())

    async def _announce(self, full: bool) -> None:
        if full:
            self._pool.apply(await self._store.announce(self._record(), self._lease_ms))

    async def _renew(self, partition: int, full: bool) -> None:
        """Each child by itself: an error with the claims of one does not hold up those of the others."""
        extends = [self._extend(child, partition, full) for child in list(self._pool.children())]
        for outcome in await asyncio.gather(*extends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _extend(self, child: ChildProcess, partition: int, full: bool) -> None:
        told, sent_at_ms = child.told, self._clock.monotonic_ms()
        keys = [
            key
            for key in (child.holds if full else child.progress)
            if key in child.holds and partition_of(child.holds[key].task_id) == partition
        ]
        for first in range(0, len(keys), MAX_BATCH):
            held = [child.holds[key] for key in keys[first : first + MAX_BATCH] if key in child.holds]
            holds = [Hold(task.task_id, task.token, child.progress.get(task.key)) for task in held]
            extensions = await self._store.extend(holds, self._lease_ms)
            for task, hold in zip(held, holds, strict=True):
                if child.progress.get(task.key) is hold.progress:  # not newer meanwhile
                    child.progress.pop(task.key, None)
            self._tell(child, held, extensions)
        if full and keys:
            child.send(protocol.Extended(told, sent_at_ms, partition))

    def _tell(self, child: ChildProcess, held: list[HeldTask], extensions: list[Extension]) -> None:
        lost: dict[str, list[int]] = {}
        cancelled: list[int] = []
        for task, extension in zip(held, extensions, strict=True):
            if not extension.held:
                # It may have been settled while the heartbeat was under way; then the child ignores this.
                child.holds.pop(task.key, None)
                lost.setdefault(extension.reason, []).append(task.key)
            elif extension.cancel_requested and task.key not in child.cancelling:
                child.cancelling.add(task.key)
                cancelled.append(task.key)
        for reason, keys in lost.items():
            child.send(protocol.Lost(keys, reason))
        if cancelled:
            self._pool.cancel(child, cancelled)


class _Rounds:
    """Does something each third of a lease, between those rounds only what is new, and sooner again after an error."""

    def __init__(self, round_: Callable[[bool], Awaitable[None]], lease_ms: int, clock: Clock) -> None:
        self._round = round_
        self._lease_ms = lease_ms
        self._clock = clock
        self._backoff = Backoff(cap_ms=max(100, lease_ms // 10))
        self._news = asyncio.Event()
        self._next_ms = 0
        #: When the last full round that was answered has ended.
        self.succeeded_at_ms: int | None = None

    def nudge(self) -> None:
        """There is something new."""
        self._news.set()

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            self._news.clear()  # before the round: progress that arrives during it is written by the next one
            full = self._clock.monotonic_ms() >= self._next_ms
            try:
                await self._round(full)
            except HoldfastError as error:
                if not self._backoff.failures:
                    _log.warning("heartbeat: the store does not answer, trying again: %s", error)
                await asyncio.sleep(self._backoff.next_s())
            else:
                self._backoff.reset()
                if full:
                    self.succeeded_at_ms = self._clock.monotonic_ms()
                    self._next_ms = self.succeeded_at_ms + self._interval_ms()
                await self._sleep()

    def _interval_ms(self) -> int:
        return round(self._lease_ms / 3 * random.uniform(0.9, 1.1))  # noqa: S311  (jitter)

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(max(0, self._next_ms - self._clock.monotonic_ms()) / 1000):
                await self._news.wait()
        except TimeoutError:
            return
