"""A store that loses calls, loses replies and is slow: seeded, so that a failure can be had again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import (
    Discard,
    Duty,
    Kept,
    Page,
    Promoted,
    Query,
    QueueCounts,
    Reserve,
    Reserved,
    Retention,
    Store,
    WorkerRecord,
)
from holdfast.testing.wrapping import PassingStore

Answer = TypeVar("Answer")
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Faults:
    """How often each fault strikes, as a share of all calls, and by which seed."""

    seed: int = 0
    #: The call never reaches the store.
    lost_calls: float = 0.0
    #: The store has done it, and the caller hears `StoreUnavailable`.
    lost_replies: float = 0.0
    #: The call waits before it is made, for up to `longest_delay_ms`.
    delays: float = 0.0
    longest_delay_ms: int = 50


def no_faults() -> Faults:
    """A store with these is as good as the one inside."""
    return Faults()


class FaultyStore(PassingStore):
    """Another store behind a bad line; `strike(False)` makes the line good."""

    def __init__(self, inner: Store, faults: Faults, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(inner)
        self._faults = faults
        self._random = Random(faults.seed)  # noqa: S311 - faults need to be repeatable, not secret
        self._sleep = sleep
        self._on = True
        #: How often each fault has struck, by name.
        self.struck = {"lost_calls": 0, "lost_replies": 0, "delays": 0}

    def strike(self, on: bool) -> None:
        """Turns the faults on or off."""
        self._on = on

    async def _call(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        if self._strikes("delays", self._faults.delays):
            await self._sleep(self._random.random() * self._faults.longest_delay_ms / 1000)
        if self._strikes("lost_calls", self._faults.lost_calls):
            call.close()
            raise StoreUnavailable(f"{self.url}: the call was lost (on purpose)")
        answer = await call
        if self._strikes("lost_replies", self._faults.lost_replies):
            raise StoreUnavailable(f"{self.url}: the reply was lost (on purpose)")
        return answer

    def _strikes(self, name: str, share: float) -> bool:
        hit = self._on and share > 0 and self._random.random() < share
        self.struck[name] += hit
        return hit

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Passed on, or lost."""
        return await self._call(self.inner.enqueue(tasks))

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Passed on, or lost."""
        return await self._call(self.inner.reserve(request, settle))

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Passed on, or lost."""
        return await self._call(self.inner.extend(holds, lease_ms))

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Passed on, or lost."""
        return await self._call(self.inner.apply(changes))

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Passed on, or lost."""
        return await self._call(self.inner.keep(key, value, ttl_ms, hold))

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Passed on, or lost."""
        return await self._call(self.inner.promote(epoch, limit))

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Passed on, or lost."""
        return await self._call(self.inner.expired(limit))

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Passed on, or lost."""
        return await self._call(self.inner.wait(bells, timeout_ms))

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Passed on, or lost."""
        return await self._call(self.inner.get(task_ids))

    async def kept(self, key: str) -> bytes | None:
        """Passed on, or lost."""
        return await self._call(self.inner.kept(key))

    async def find(self, query: Query) -> Page:
        """Passed on, or lost."""
        return await self._call(self.inner.find(query))

    async def counts(self) -> list[QueueCounts]:
        """Passed on, or lost."""
        return await self._call(self.inner.counts())

    async def workers(self) -> list[WorkerRecord]:
        """Passed on, or lost."""
        return await self._call(self.inner.workers())

    async def discards(self, limit: int = 100) -> list[Discard]:
        """Passed on, or lost."""
        return await self._call(self.inner.discards(limit))

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> None:
        """Passed on, or lost."""
        await self._call(self.inner.announce(worker, ttl_ms))

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Passed on, or lost."""
        return await self._call(self.inner.hold_duty(name, owner, ttl_ms))

    async def pause(self, queue: str, paused: bool) -> None:
        """Passed on, or lost."""
        await self._call(self.inner.pause(queue, paused))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Passed on, or lost."""
        return await self._call(self.inner.prune(epoch, retention, limit))

    async def partition_map(self) -> PartitionMap:
        """Passed on, or lost."""
        return await self._call(self.inner.partition_map())

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Passed on, or lost."""
        return await self._call(self.inner.put_partition_map(new))
