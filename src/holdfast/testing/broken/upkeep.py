"""Bugs of promotion, requeue, pruning, duties and dead letters."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.lifecycle import Change, Event
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Enqueued, Lapsed, NewTask, Task
from holdfast.errors import StaleEpoch, StaleMap
from holdfast.stores.contract import UPKEEP_DUTY, Discard, Duty, Promoted, Retention, Store
from holdfast.testing.broken.base import BrokenStore, TranslatingStore
from holdfast.testing.clock import SteppedClock


class _EarlyClock(BrokenStore):
    """Can look at the data as of a later time."""

    def later(self, milliseconds: int) -> None:
        """Moves the store's clock."""
        self.clock.advance(milliseconds)


class PromotesEarly(_EarlyClock):
    """Tasks become ready 50 ms before their time."""

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """As of 50 ms later."""
        self.later(50)
        answer = await self.inner.promote(epoch, limit)
        self.later(-50)
        return answer


class ExpiresEarly(_EarlyClock):
    """Leases are found to have run out 50 ms before they have."""

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """As of 50 ms later."""
        self.later(50)
        answer = await self.inner.expired(limit)
        self.later(-50)
        return answer


class EpochNotChecked(TranslatingStore):
    """The upkeep of a process that is not the owner any more is accepted."""

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """By anybody."""
        try:
            return await self.inner.promote(epoch, limit)
        except StaleEpoch:
            return await self.inner.promote(await self._current(), limit)

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """By anybody."""
        try:
            return await self.inner.prune(epoch, retention, limit)
        except StaleEpoch:
            return await self.inner.prune(await self._current(), retention, limit)

    async def translated(self, change: Change) -> Change:
        """Without its epoch."""
        return msgspec.structs.replace(change, epoch=None)

    async def _current(self) -> int:
        return (await self.inner.hold_duty(UPKEEP_DUTY, "nobody", 0)).epoch


class RequeueWithoutRecheck(TranslatingStore):
    """A claim that was found expired is taken away although its holder has extended it since."""

    async def translated(self, change: Change) -> Change:
        """Without the guard."""
        return msgspec.structs.replace(change, lapsed_only=False)


class PrunesTooEarly(_EarlyClock):
    """Finished tasks are deleted a second before their time."""

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """As of a second later."""
        self.later(1_000)
        answer = await self.inner.prune(epoch, retention, limit)
        self.later(-1_000)
        return answer


class PrunesUnfinished(BrokenStore):
    """Old tasks are deleted whether they are finished or not."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._deleted_before_ms = 0

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """By the time of creation."""
        number = await self.inner.prune(epoch, retention, limit)
        self._deleted_before_ms = self.clock.now_ms() - retention.succeeded_ms
        return number

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Without what is old."""
        found = await self.inner.get(task_ids)
        return [task if task and task.created_at_ms >= self._deleted_before_ms else None for task in found]


class KeepIgnored(BrokenStore):
    """Finished tasks are kept however many they are."""

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """By age only."""
        return await self.inner.prune(epoch, msgspec.structs.replace(retention, keep=1 << 40), limit)


class PromotesNothing(BrokenStore):
    """A promotion is answered and does nothing."""

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Of nothing."""
        return await self.inner.promote(epoch, min(limit, 0))


class DutyForEverybody(BrokenStore):
    """Whoever asks for a duty is told that it is his."""

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Always held."""
        duty = await self.inner.hold_duty(name, owner, ttl_ms)
        return msgspec.structs.replace(duty, owner=owner, held=True)


class EpochStandsStill(BrokenStore):
    """The epoch does not grow when the holder changes."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._current = 1

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Always epoch 1."""
        duty = await self.inner.hold_duty(name, owner, ttl_ms)
        self._current = duty.epoch
        return msgspec.structs.replace(duty, epoch=1)

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Epoch 1 is the owner's."""
        return await self.inner.promote(self._current if epoch == 1 else epoch, limit)


class DiscardWithoutRecord(BrokenStore):
    """A discarded task leaves no trace."""

    async def discards(self, limit: int = 100) -> list[Discard]:
        """None."""
        del limit
        return []


class DiscardKeepsTheTask(TranslatingStore):
    """A discarded task is put back instead of deleted."""

    async def translated(self, change: Change) -> Change:
        """Replayed."""
        return msgspec.structs.replace(change, event=Event.REPLAY) if change.event is Event.DISCARD else change


class OldMapAccepted(BrokenStore):
    """A partition map of an older version is taken for the current one."""

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Whatever comes."""
        try:
            return await self.inner.put_partition_map(new)
        except StaleMap:
            return new


class OldRoutingServed(BrokenStore):
    """Calls that were routed by an old map are answered."""

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """By any map."""
        self.map_version = max(self.map_version, (await self.inner.partition_map()).version)
        return await self.inner.enqueue(tasks)
