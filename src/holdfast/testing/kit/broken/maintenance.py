"""Bugs of promotion, expiry, pruning, leadership, discards and the partition map."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.lifecycle import Change, Event
from holdfast.core.retry import DEAD_LETTER_TTL_MS, RESULT_TTL_MS, RunPolicy
from holdfast.core.task import Enqueued, NewTask, State, Task
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.stores.contract import (
    MAINTENANCE,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    Expired,
    Leadership,
    Promoted,
    Retention,
    Store,
)
from holdfast.stores.documents import DISCARD, MAP
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import BrokenStore, DocumentBug, TranslatingStore


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
    """Leases are found to have expired 50 ms before they have."""

    async def expired(self, limit: int = 1_000) -> Expired:
        """As of 50 ms later."""
        self.later(50)
        early = await self.inner.expired(limit)
        self.later(-50)
        return replace(await self.inner.expired(limit), claims=early.claims)


class ExpiredShareTheirLimit(BrokenStore):
    """With many expired claims, tasks that were not started in time are not found."""

    async def expired(self, limit: int = 1_000) -> Expired:
        """At most `limit` of both."""
        answer = await self.inner.expired(limit)
        return replace(answer, unstarted=answer.unstarted[: limit - len(answer.claims)])


class UnstartedEarly(_EarlyClock):
    """Tasks are found not to be started in time 50 ms before their deadline."""

    async def expired(self, limit: int = 1_000) -> Expired:
        """As of 50 ms later."""
        self.later(50)
        early = await self.inner.expired(limit)
        self.later(-50)
        return replace(await self.inner.expired(limit), unstarted=early.unstarted)


class UnstartedToldOnce(BrokenStore):
    """The first to ask for the tasks that were not started in time is the only one to be told."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._told: set[str] = set()

    async def expired(self, limit: int = 1_000) -> Expired:
        """Those not told yet."""
        answer = await self.inner.expired(limit)
        found = [task_id for task_id in answer.unstarted if task_id not in self._told]
        self._told.update(found)
        return replace(answer, unstarted=found)


class ScheduledIsAlwaysInTime(BrokenStore):
    """A delayed task outlives its deadline to start."""

    async def expired(self, limit: int = 1_000) -> Expired:
        """Ready ones only."""
        answer = await self.inner.expired(limit)
        found = await self.inner.get(answer.unstarted)
        return replace(answer, unstarted=[task.task_id for task in found if task and task.state is State.READY])


class FollowsNoStepBack(BrokenStore):
    """A clock that is set back is not followed: the latest time that was seen counts on."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._latest_ms = 0

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """As of the latest time."""
        self._latest_ms = max(self._latest_ms, self.clock.now_ms())
        behind_ms = self._latest_ms - self.clock.now_ms()
        self.clock.step(behind_ms)
        answer = await self.inner.promote(epoch, limit)
        self.clock.step(-behind_ms)
        return answer


class LeadershipOfTheFuture(BrokenStore):
    """Who became leader before the clock was set back stays it until that time comes again."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._held: dict[str, tuple[Leadership, int]] = {}

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """For all the others."""
        now_ms = self.clock.now_ms()
        held, until_ms = self._held.get(name, (None, 0))
        if held is not None and held.owner != owner and until_ms > now_ms:
            return replace(held, held=False, expires_in_ms=until_ms - now_ms)
        leadership = await self.inner.lead(name, owner, ttl_ms)
        if leadership.held:
            self._held[name] = leadership, now_ms + ttl_ms
        elif owner is not None:
            self._held.pop(name, None)
        return leadership


class EpochNotChecked(TranslatingStore):
    """The maintenance of a process that is not the leader any more is accepted."""

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """By any process."""
        try:
            return await self.inner.promote(epoch, limit)
        except StaleEpoch:
            return await self.inner.promote(await self._current(), limit)

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """By any process."""
        try:
            return await self.inner.prune(epoch, retention, limit)
        except StaleEpoch:
            return await self.inner.prune(await self._current(), retention, limit)

    async def translated(self, change: Change) -> Change:
        """Without its epoch."""
        return replace(change, epoch=None)

    async def _current(self) -> int:
        return (await self.inner.lead(MAINTENANCE, None)).epoch


class RequeueWithoutRecheck(TranslatingStore):
    """A claim that was found expired is taken away although its holder has extended it since."""

    async def translated(self, change: Change) -> Change:
        """Without the guard."""
        return replace(change, expired_only=False)


class PrunesTooEarly(_EarlyClock):
    """Finished tasks are deleted a second before their time."""

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """As of a second later."""
        self.later(1_000)
        answer = await self.inner.prune(epoch, retention, limit)
        self.later(-1_000)
        return answer


class PrunesByTheDefault(BrokenStore):
    """Finished tasks are kept for the default time, whatever their own app asked for."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._policies: dict[str, RunPolicy] = {}

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """With the times of the default."""
        self._policies.update({task.task_id: task.policy for task in tasks})
        plain = {"result_ttl_ms": RESULT_TTL_MS, "dead_letter_ttl_ms": DEAD_LETTER_TTL_MS}
        replaced = [replace(task, policy=replace(task.policy, **plain)) for task in tasks]
        return await self.inner.enqueue(replaced, map_version=map_version)

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """As they were sent."""
        found = await self.inner.get(task_ids)
        return [task and replace(task, policy=self._policies.get(task.task_id, task.policy)) for task in found]


class PrunesUnfinished(BrokenStore):
    """Old tasks are deleted whether they are finished or not."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._deleted_before_ms = 0

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """By the time of creation."""
        number = await self.inner.prune(epoch, retention, limit)
        self._deleted_before_ms = self.clock.now_ms() - 1_000
        return number

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Without what is old."""
        found = await self.inner.get(task_ids)
        return [task if task and task.created_at_ms >= self._deleted_before_ms else None for task in found]


class KeepIgnored(BrokenStore):
    """Finished tasks are kept however many they are."""

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """By age only."""
        return await self.inner.prune(epoch, replace(retention, keep=1 << 40), limit)


class PromotesNothing(BrokenStore):
    """A promotion is answered and does nothing."""

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Of nothing."""
        return await self.inner.promote(epoch, min(limit, 0))


class EverybodyLeads(BrokenStore):
    """Every process that asks is told that it leads."""

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Always held."""
        leadership = await self.inner.lead(name, owner, ttl_ms)
        return replace(leadership, owner=owner or leadership.owner, held=owner is not None)


class EpochStandsStill(BrokenStore):
    """The epoch does not grow when the leader changes."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._current = 1

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Always epoch 1."""
        leadership = await self.inner.lead(name, owner, ttl_ms)
        self._current = leadership.epoch
        return replace(leadership, epoch=1)

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Epoch 1 is the leader's."""
        return await self.inner.promote(self._current if epoch == 1 else epoch, limit)


class LookTakesTheLead(BrokenStore):
    """A process that only looks becomes the leader if there is none."""

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """For a while."""
        return await self.inner.lead(name, owner or "looking", ttl_ms or (0 if owner else 1_000))


class DiscardWithoutRecord(DocumentBug):
    """A discarded task leaves no trace."""

    kinds = frozenset({DISCARD})

    def listed(self, page: DocumentPage, names: Sequence[str] | None) -> DocumentPage:
        """None."""
        del names
        return replace(page, documents=[], cursor=None)


class DiscardKeepsTheTask(TranslatingStore):
    """A discarded task is put back instead of deleted."""

    async def translated(self, change: Change) -> Change:
        """Replayed."""
        return replace(change, event=Event.REPLAY) if change.event is Event.DISCARD else change


class OldMapAccepted(DocumentBug):
    """A partition map that does not follow the current one is taken."""

    kinds = frozenset({MAP})

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """In place of what is there."""
        return await self.inner.put(replace(write, expected=None))


class OldRoutingServed(BrokenStore):
    """Calls that were routed by an old map are answered."""

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """By any map."""
        current = (await documents.partition_map(self.inner)).version
        return await self.inner.enqueue(tasks, map_version=max(map_version, current))
