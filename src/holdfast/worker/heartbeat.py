"""Keeps the claims of all children alive, and passes on what the store says about them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from holdfast.clock import Clock
from holdfast.core.task import Extension, Hold
from holdfast.errors import StoreError
from holdfast.stores.contract import MAX_BATCH, Store, WorkerOrders, WorkerRecord
from holdfast.worker import messages
from holdfast.worker.backoff import Backoff
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.messages import HeldTask

_log = logging.getLogger("holdfast.worker")


class Charges(Protocol):
    """Those whose claims are kept alive."""

    def children(self) -> Collection[ChildProcess]:
        """All that may hold something."""
        ...

    def cancel(self, child: ChildProcess, keys: Sequence[int]) -> None:
        """Somebody wants these tasks of a child not to go on."""
        ...

    def heed(self, orders: WorkerOrders | None) -> None:
        """What an operator wants of the worker."""
        ...


class Heartbeat:
    """Extends every claim each third of a lease; between the beats, only those with news of progress."""

    def __init__(
        self,
        store: Store,
        lease_ms: int,
        clock: Clock,
        charges: Charges,
        record: Callable[[], WorkerRecord],
    ) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._clock = clock
        self._charges = charges
        self._record = record
        #: When the store last heard of all claims.
        self.succeeded_at_ms = clock.monotonic_ms()
        self._backoff = Backoff(cap_ms=max(100, lease_ms // 10))
        self._news = asyncio.Event()

    def nudge(self) -> None:
        """There is progress to record: do it now."""
        self._news.set()

    async def run(self) -> None:
        """Goes on until cancelled; through an outage it tries more often, since leases are running out."""
        next_beat_ms = 0
        while True:
            full = self._clock.monotonic_ms() >= next_beat_ms
            try:
                await self._beat(full)
                self._backoff.reset()
                if full:
                    self.succeeded_at_ms = self._clock.monotonic_ms()
                    next_beat_ms = self.succeeded_at_ms + self._interval_ms()
            except StoreError as error:
                if not self._backoff.failures:
                    _log.warning("heartbeat: the store does not answer, trying again: %s", error)
                await asyncio.sleep(self._backoff.next_s())
            else:
                await self._sleep_until(next_beat_ms)

    def _interval_ms(self) -> int:
        return round(self._lease_ms / 3 * random.uniform(0.9, 1.1))  # noqa: S311  (jitter)

    async def _sleep_until(self, moment_ms: int) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(max(0, moment_ms - self._clock.monotonic_ms()) / 1000):
                await self._news.wait()
        except TimeoutError:
            return

    async def _beat(self, full: bool) -> None:
        for child in list(self._charges.children()):
            await self._extend(child, full)
        if full:
            self._charges.heed(await self._store.announce(self._record(), self._lease_ms))

    async def _extend(self, child: ChildProcess, full: bool) -> None:
        told, sent_at_ms = child.told, self._clock.monotonic_ms()
        keys = list(child.holds if full else child.progress)
        for first in range(0, len(keys), MAX_BATCH):
            held = [child.holds[key] for key in keys[first : first + MAX_BATCH] if key in child.holds]
            holds = [Hold(task.task_id, task.token, child.progress.get(task.key)) for task in held]
            extensions = await self._store.extend(holds, self._lease_ms)
            for task, hold in zip(held, holds, strict=True):
                if child.progress.get(task.key) is hold.progress:  # not newer meanwhile
                    child.progress.pop(task.key, None)
            self._pass_on(child, held, extensions)
        if full and keys:
            child.send(messages.Extended(told, sent_at_ms))

    def _pass_on(self, child: ChildProcess, held: list[HeldTask], extensions: list[Extension]) -> None:
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
            child.send(messages.Lost(keys, reason))
        if cancelled:
            self._charges.cancel(child, cancelled)
