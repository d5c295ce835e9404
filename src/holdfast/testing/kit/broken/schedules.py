"""Bugs of schedules, and of orders for workers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.stores import documents
from holdfast.stores.contract import (
    Document,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    Retention,
    Store,
    WorkerOrders,
    WorkerRecord,
)
from holdfast.stores.documents import ORDERS, SCHEDULE
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import BrokenStore, DocumentBug


class _ScheduleBug(DocumentBug):
    """A good store with a bug in its schedules."""

    kinds = frozenset({SCHEDULE})


class PutIgnoresTheVersion(_ScheduleBug):
    """The last writer wins, whatever it has read: edits are lost, and occurrences fire twice."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """In place of what is there."""
        return await self.inner.put(replace(write, expected=None))


class RefusedOccurrenceEnqueues(_ScheduleBug):
    """A caller that comes too late with an occurrence is told so, and its tasks are enqueued all the same."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Tasks first."""
        await self.inner.enqueue(write.tasks, map_version=write.map_version)
        return await self.inner.put(replace(write, tasks=()))


class OccurrenceInTwoSteps(_ScheduleBug):
    """The version is looked at before the transaction: two that look at once both fire the occurrence."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """A look, and then the rest."""
        current = await documents.one(self.inner, write.kind, write.name)
        if current is not None and current.version == write.expected:
            await self.inner.enqueue(write.tasks, map_version=write.map_version)
        return await self.inner.put(write)


class OccurrenceWithoutTasks(_ScheduleBug):
    """An occurrence moves the schedule on, and its tasks are lost on the way."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Without its first task."""
        return await self.inner.put(replace(write, tasks=write.tasks[1:]))


class RepeatedPutIsRefused(_ScheduleBug):
    """The same put again is refused: a caller that lost the reply believes that another one was faster."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """No repeats."""
        current = await documents.one(self.inner, write.kind, write.name)
        if current is not None and current.value == write.value:
            return DocumentResult(False, current, "version")
        return await self.inner.put(write)


class RepeatedOccurrenceFiresAgain(_ScheduleBug):
    """The same occurrence again enqueues its tasks again, if they have come and gone meanwhile."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Tasks with every success."""
        result = await self.inner.put(replace(write, tasks=()))
        if result.applied:
            await self.inner.enqueue(write.tasks, map_version=write.map_version)
        return result


class OccurrenceOfAFormerLeader(_ScheduleBug):
    """The occurrences of a process that is not the leader any more are fired."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """By any process."""
        return await self.inner.put(replace(write, epoch=None))


class RemovedScheduleStays(_ScheduleBug):
    """A removal is answered and does nothing."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Only what is new."""
        return DocumentResult(True) if write.value is None else await self.inner.put(write)


class ScheduleLosesItsCall(_ScheduleBug):
    """Headers and policy of a schedule's call are not stored."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """The name of the type is enough."""
        if write.value is None:
            return await self.inner.put(write)
        schedule = documents.schedule_of(Document(write.kind, write.name, write.value, 1))
        bare = replace(schedule, call=type(schedule.call)(type=schedule.call.type, queue=schedule.call.queue))
        return await self.inner.put(replace(write, value=msgspec.json.encode(bare)))


class DueEarly(_ScheduleBug):
    """Schedules are due 50 ms before their occurrences."""

    async def due(self, kind: str, due_within_ms: int, limit: int) -> DocumentPage:
        """Within 50 ms more."""
        return await self.inner.documents(kind, due_within_ms=due_within_ms + 50, limit=limit)


class DueInAnyOrder(_ScheduleBug):
    """Schedules come by their names: with many of them due, the oldest occurrence may never have its turn."""

    async def due(self, kind: str, due_within_ms: int, limit: int) -> DocumentPage:
        """By name."""
        page = await self.inner.documents(kind, due_within_ms=due_within_ms)
        return replace(page, documents=sorted(page.documents, key=lambda document: document.name)[:limit])


class PausedIsNotListed(_ScheduleBug):
    """A schedule without a next occurrence cannot be found by looking."""

    def listed(self, page: DocumentPage, names: Sequence[str] | None) -> DocumentPage:
        """Those that are due at some time."""
        del names
        return replace(page, documents=[document for document in page.documents if document.due_at_ms is not None])


class OrdersToldOnce(BrokenStore):
    """A worker that misses the answer to one heartbeat never hears its orders."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._told: WorkerOrders | None = None

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """What was not told yet."""
        orders = await self.inner.announce(worker, ttl_ms)
        told, self._told = self._told, orders
        return None if orders == told else orders


class OrdersOutliveTheWorker(DocumentBug):
    """Orders are kept by the name of the worker, for the next one under that name."""

    kinds = frozenset({ORDERS})

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._orders: dict[str, WorkerOrders | None] = {}

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Noted down."""
        self._orders[write.name] = documents.orders_of(write.value)
        return await self.inner.put(write)

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """From memory."""
        await self.inner.announce(worker, ttl_ms)
        return self._orders.get(worker.worker_id) if ttl_ms else None


class OrdersAreNeverPruned(BrokenStore):
    """Orders for a worker that is not there stay for ever."""

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Put back after it."""
        before = [document async for document in documents.every(self.inner, ORDERS)]
        number = await self.inner.prune(epoch, retention, limit)
        for document in before:
            await self.inner.put(DocumentWrite(kind=ORDERS, name=document.name, value=document.value))
        return number
