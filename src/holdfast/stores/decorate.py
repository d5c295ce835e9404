"""Stores that wrap another one, and what every store of one partition has in common."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Enqueued, Extension, Hold, NewTask, Task
from holdfast.errors import StaleMap
from holdfast.stores.capabilities import NO_CAPABILITIES, Capabilities
from holdfast.stores.contract import (
    MAX_BATCH,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    Expired,
    Finding,
    Leadership,
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


class SinglePartition:
    """The part of the contract that a store of one partition answers without asking its engine."""

    #: The partition that ids of new tasks carry when this store is used alone.
    partition = 0
    capabilities: Capabilities = NO_CAPABILITIES

    async def placement(self) -> Placement:
        """All of them here."""
        return self._here_always

    async def partitions(self) -> Sequence[Store]:
        """Itself."""
        return [cast("Store", self)]

    def _here_always(self, queue: str, request_id: str | None) -> int:
        del queue, request_id
        return self.partition


def stale_map(url: str, current: PartitionMap | int) -> StaleMap:
    """The refusal of a call that was routed by an older map than the current one, or by none."""
    version = current if isinstance(current, int) else current.version
    return StaleMap(
        f"{url}: the partition map has version {version} now, the call was routed by an older one; "
        "a store with several partitions is opened with the URLs of all of them, separated by commas"
    )


# -- passing -------------------------------------------------------------------------------------------------


Answer = TypeVar("Answer")


class PassingStore(Store):
    """Every method of the contract, answered by another store."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        # A store that changes `enqueue` means every task, so none goes past it; and one that changes what is read
        # means every reader.
        self.capabilities: Capabilities = replace(inner.capabilities, enqueue_now=None, in_part=None)

    async def _pass(self, method: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Awaits every call: for stores that do the same to all of them."""
        del method
        return await call

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Passed on."""
        return await self._pass("enqueue", self.inner.enqueue(tasks, map_version=map_version))

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Passed on."""
        return await self._pass("reserve", self.inner.reserve(request, settle))

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Passed on."""
        return await self._pass("extend", self.inner.extend(holds, lease_ms, check_only=check_only))

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Passed on."""
        return await self._pass("apply", self.inner.apply(changes))

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        """Passed on."""
        return await self._pass("wait", self.inner.wait(wakeups, timeout_ms))

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Passed on."""
        return await self._pass("get", self.inner.get(task_ids))

    async def find(self, query: Query) -> Page:
        """Passed on."""
        return await self._pass("find", self.inner.find(query))

    async def counts(self) -> list[QueueCounts]:
        """Passed on."""
        return await self._pass("counts", self.inner.counts())

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        """Passed on."""
        call = self.inner.documents(kind, names=names, due_within_ms=due_within_ms, cursor=cursor, limit=limit)
        return await self._pass("documents", call)

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Passed on."""
        return await self._pass("put", self.inner.put(write))

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Passed on."""
        return await self._pass("announce", self.inner.announce(worker, ttl_ms))

    async def workers(self) -> list[WorkerRecord]:
        """Passed on."""
        return await self._pass("workers", self.inner.workers())

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Passed on."""
        return await self._pass("lead", self.inner.lead(name, owner, ttl_ms))

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Passed on."""
        return await self._pass("promote", self.inner.promote(epoch, limit))

    async def expired(self, limit: int = 1_000) -> Expired:
        """Passed on."""
        return await self._pass("expired", self.inner.expired(limit))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Passed on."""
        return await self._pass("prune", self.inner.prune(epoch, retention, limit))

    async def placement(self) -> Placement:
        """Passed on."""
        return await self._pass("placement", self.inner.placement())

    async def partitions(self) -> Sequence[Store]:
        """Passed on; the partition of a single store is the one that passes on."""
        inner = await self.inner.partitions()
        return [self] if list(inner) == [self.inner] else inner

    async def probe(self) -> list[Finding]:
        """Passed on."""
        return await self._pass("probe", self.inner.probe())

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Passed on."""
        return await self._pass("migrate", self.inner.migrate(dry_run=dry_run))

    async def close(self) -> None:
        """Passed on."""
        await self._pass("close", self.inner.close())
