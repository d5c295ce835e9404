"""A store that passes every call on: the base of stores that change a few of them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.stores.contract import (
    Discard,
    Document,
    DueSchedules,
    Duty,
    Finding,
    Kept,
    Page,
    Placement,
    Promoted,
    Query,
    QueueCounts,
    Reserve,
    Reserved,
    Retention,
    Store,
    WorkerOrders,
    WorkerRecord,
)

Answer = TypeVar("Answer")


class PassingStore(Store):
    """Every method of the contract, answered by another store."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url

    @property
    def map_version(self) -> int:
        """Passed on."""
        return self.inner.map_version

    @map_version.setter
    def map_version(self, version: int) -> None:
        self.inner.map_version = version

    async def _pass(self, method: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        """The way of every call but `enqueue_now`: for stores that do the same to all of them."""
        del method
        return await call

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Passed on."""
        return await self._pass("enqueue", self.inner.enqueue(tasks))

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """Not this way: whoever changes `enqueue` means every task."""
        del tasks
        return None

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Passed on."""
        return await self._pass("reserve", self.inner.reserve(request, settle))

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Passed on."""
        return await self._pass("extend", self.inner.extend(holds, lease_ms))

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Passed on."""
        return await self._pass("apply", self.inner.apply(changes))

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Passed on."""
        return await self._pass("keep", self.inner.keep(key, value, ttl_ms, hold))

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Passed on."""
        return await self._pass("promote", self.inner.promote(epoch, limit))

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Passed on."""
        return await self._pass("expired", self.inner.expired(limit))

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Passed on."""
        return await self._pass("overdue", self.inner.overdue(limit))

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Passed on."""
        return await self._pass("wait", self.inner.wait(bells, timeout_ms))

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Passed on."""
        return await self._pass("get", self.inner.get(task_ids))

    async def kept(self, key: str) -> bytes | None:
        """Passed on."""
        return await self._pass("kept", self.inner.kept(key))

    async def find(self, query: Query) -> Page:
        """Passed on."""
        return await self._pass("find", self.inner.find(query))

    async def counts(self) -> list[QueueCounts]:
        """Passed on."""
        return await self._pass("counts", self.inner.counts())

    async def workers(self) -> list[WorkerRecord]:
        """Passed on."""
        return await self._pass("workers", self.inner.workers())

    async def discards(self, limit: int = 100) -> list[Discard]:
        """Passed on."""
        return await self._pass("discards", self.inner.discards(limit))

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Passed on."""
        return await self._pass("announce", self.inner.announce(worker, ttl_ms))

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Passed on."""
        return await self._pass("order", self.inner.order(worker_id, orders))

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Passed on."""
        return await self._pass("hold_duty", self.inner.hold_duty(name, owner, ttl_ms))

    async def pause(self, queue: str, paused: bool) -> None:
        """Passed on."""
        await self._pass("pause", self.inner.pause(queue, paused))

    async def set_step(self, queue: str, step_ms: int) -> None:
        """Passed on."""
        await self._pass("set_step", self.inner.set_step(queue, step_ms))

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Passed on."""
        return await self._pass("schedules", self.inner.schedules(due_within_ms, limit))

    async def schedule(self, name: str) -> Schedule | None:
        """Passed on."""
        return await self._pass("schedule", self.inner.schedule(name))

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Passed on."""
        return await self._pass("put_schedule", self.inner.put_schedule(name, new, expected, tasks, epoch))

    async def documents(self, kind: str) -> list[Document]:
        """Passed on."""
        return await self._pass("documents", self.inner.documents(kind))

    async def document(self, kind: str, name: str) -> Document | None:
        """Passed on."""
        return await self._pass("document", self.inner.document(kind, name))

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Passed on."""
        return await self._pass("put_document", self.inner.put_document(kind, name, value, expected))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Passed on."""
        return await self._pass("prune", self.inner.prune(epoch, retention, limit))

    async def probe(self) -> list[Finding]:
        """Passed on."""
        return await self._pass("probe", self.inner.probe())

    async def partition_map(self) -> PartitionMap:
        """Passed on."""
        return await self._pass("partition_map", self.inner.partition_map())

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Passed on."""
        return await self._pass("put_partition_map", self.inner.put_partition_map(new))

    async def placement(self) -> Placement:
        """Passed on."""
        return await self._pass("placement", self.inner.placement())

    def partitions(self) -> Sequence[Store]:
        """Passed on; the partition of a single store is the one that passes on."""
        inner = self.inner.partitions()
        return [self] if list(inner) == [self.inner] else inner

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Passed on."""
        return await self._pass("migrate", self.inner.migrate(dry_run=dry_run))

    async def close(self) -> None:
        """Passed on."""
        await self._pass("close", self.inner.close())
