"""The remote store: the contract, each method one call to a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.errors import StaleMap
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
from holdfast.stores.remote import parting, probing
from holdfast.stores.remote.link import Link
from holdfast.stores.remote.placing import Placing
from holdfast.wire import calls
from holdfast.wire.calls import NoArguments, StoreCall
from holdfast.wire.limits import MAX_BATCH_BYTES

Item = TypeVar("Item")
Q = TypeVar("Q")
A = TypeVar("A")

_NOTHING = NoArguments()


class RemoteStore:
    """The store behind a gateway, or with a number one partition of it."""

    def __init__(self, link: Link, *, partition: int | None = None, url: str = "", map_version: int = 0) -> None:
        self.url = url or link.settings.url
        self.map_version = map_version
        self._link = link
        self._partition = partition
        self._place = "" if partition is None else f"?{calls.PARTITION}={partition}"
        self._placing = Placing(self.partition_map)
        #: A partition is its own; what is behind a gateway, it is asked for.
        self._partitions: Sequence[Store] | None = None if partition is None else [self]

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records tasks; in several calls if they are more than a gateway takes at once."""
        if not tasks:
            return []
        body = calls.ENQUEUE.write_request(calls.Enqueue(tasks=list(tasks)))
        if _too_large(body, tasks):
            first, second = _halves(tasks)
            return [*await self.enqueue(first), *await self.enqueue(second)]
        try:
            answer = await self._link.ask(calls.ENQUEUE, body, self._route())
        except StaleMap:
            await self._placing.keep_up(refused=True)
            raise
        await self._placing.keep_up()
        return self._link.read(calls.ENQUEUE, answer)

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """Records tasks if the gateway simply says so, and the map by which they were placed is not too old."""
        if self._placing.is_old:
            return None
        body = calls.ENQUEUE.write_request(calls.Enqueue(tasks=list(tasks)))
        answer = None if _too_large(body, tasks) else self._link.ask_now(calls.ENQUEUE, body, self._route())
        return None if answer is None or answer.status != 200 else self._link.read(calls.ENQUEUE, answer)

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one call."""
        arguments = calls.Reserve(request=request, settle=list(settle))
        body = calls.RESERVE.write_request(arguments)
        if _too_large(body, settle):
            verdicts = await self.apply(settle)
            return replace(await self.reserve(request), verdicts=verdicts)
        answer = await self._link.ask(calls.RESERVE, body, self._route(), repeat=lambda: _not_fresh(arguments))
        return self._link.read(calls.RESERVE, answer)

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Renews leases and records progress."""
        body = calls.EXTEND.write_request(calls.Extend(holds=list(holds), lease_ms=lease_ms))
        if _too_large(body, holds):
            first, second = _halves(holds)
            return [*await self.extend(first, lease_ms), *await self.extend(second, lease_ms)]
        return self._link.read(calls.EXTEND, await self._link.ask(calls.EXTEND, body, self._place))

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        body = calls.APPLY.write_request(calls.Apply(changes=list(changes)))
        if _too_large(body, changes):
            first, second = _halves(changes)
            return [*await self.apply(first), *await self.apply(second)]
        return self._link.read(calls.APPLY, await self._link.ask(calls.APPLY, body, self._place))

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Keeps a value under a key."""
        return await self._call(calls.KEEP, calls.Keep(key=key, value=value, ttl_ms=ttl_ms, hold=hold))

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        return await self._call(calls.PROMOTE, calls.Epoch(epoch=epoch, limit=limit))

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out."""
        return await self._call(calls.EXPIRED, calls.Limit(limit=limit))

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Tasks that should have begun by now."""
        return await self._call(calls.OVERDUE, calls.Limit(limit=limit))

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps in a long poll until a bell is rung; called off, it takes its connection with it."""
        return await self._link.listen(list(bells), timeout_ms, self._place)

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        return await self._call(calls.GET, calls.TaskIds(task_ids=list(task_ids)))

    async def kept(self, key: str) -> bytes | None:
        """What is kept under a key."""
        return await self._call(calls.KEPT, calls.Key(key=key))

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first."""
        return await self._call(calls.FIND, calls.Find(query=query))

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return await self._call(calls.COUNTS, _NOTHING)

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return await self._call(calls.WORKERS, _NOTHING)

    async def discards(self, limit: int = 100) -> list[Discard]:
        """Records of discarded tasks."""
        return await self._call(calls.DISCARDS, calls.Limit(limit=limit))

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Schedules by their next tick."""
        return await self._call(calls.SCHEDULES, calls.Schedules(due_within_ms=due_within_ms, limit=limit))

    async def schedule(self, name: str) -> Schedule | None:
        """The schedule of this name."""
        return await self._call(calls.SCHEDULE, calls.Name(name=name))

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives; gives its orders."""
        return await self._call(calls.ANNOUNCE, calls.Announce(worker=worker, ttl_ms=ttl_ms))

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Leaves orders for a worker."""
        return await self._call(calls.ORDER, calls.Order(worker_id=worker_id, orders=orders))

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Takes, keeps or lets go a duty."""
        return await self._call(calls.HOLD_DUTY, calls.HoldDuty(name=name, owner=owner, ttl_ms=ttl_ms))

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes a queue."""
        await self._call(calls.PAUSE, calls.Pause(queue=queue, paused=paused))

    async def set_step(self, queue: str, step_ms: int) -> None:
        """Changes what a level of priority is worth in a queue."""
        await self._call(calls.SET_STEP, calls.SetStep(queue=queue, step_ms=step_ms))

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Replaces a schedule and records its tasks."""
        arguments = calls.PutSchedule(name=name, new=new, expected=expected, tasks=list(tasks), epoch=epoch)
        return await self._link.call(calls.PUT_SCHEDULE, arguments, self._route())

    async def documents(self, kind: str) -> list[Document]:
        """All documents of a kind, for a token that may see them."""
        return await self._call(calls.DOCUMENTS, calls.Kind(kind=kind))

    async def document(self, kind: str, name: str) -> Document | None:
        """One document."""
        return await self._call(calls.DOCUMENT, calls.DocumentName(kind=kind, name=name))

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Replaces or removes a document."""
        arguments = calls.PutDocument(kind=kind, name=name, value=value, expected=expected)
        return await self._call(calls.PUT_DOCUMENT, arguments)

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        return await self._call(calls.PRUNE, calls.Prune(epoch=epoch, retention=retention, limit=limit))

    async def probe(self) -> list[Finding]:
        """What can be said about the way to the gateway, and what its store says of itself."""
        return [*probing.findings(self._link.settings), *await self._call(calls.PROBE, _NOTHING)]

    # -- partitions -----------------------------------------------------------------------------------------

    async def partition_map(self) -> PartitionMap:
        """The partition map of the store behind the gateway."""
        return await self._call(calls.PARTITION_MAP, _NOTHING)

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Keeps a new partition map."""
        return await self._call(calls.PUT_PARTITION_MAP, calls.NewMap(new=new))

    async def placement(self) -> Placement:
        """By the partition map."""
        await self._placing.learn()
        return self._placing.place

    def partitions(self) -> Sequence[Store]:
        """The partitions behind the gateway, for a token that may look after them; for any other, none."""
        if self._partitions is None:
            self._partitions = parting.partitions(self, self._link)
        return self._partitions

    # -- life -----------------------------------------------------------------------------------------------

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings the schema behind the gateway up to the gateway's version."""
        return await self._call(calls.MIGRATE, calls.Migrate(dry_run=dry_run))

    async def close(self) -> None:
        """Ends connections."""
        await self._link.close()

    # -- inside ---------------------------------------------------------------------------------------------

    async def _call(self, call: StoreCall[Q, A], arguments: Q) -> A:
        return await self._link.call(call, arguments, self._place)

    def _route(self) -> str:
        """The end of the address of a call that is routed by the partition map."""
        if self._partition is not None:
            return f"{self._place}&{calls.MAP_VERSION}={self.map_version}"
        return f"?{calls.MAP_VERSION}={self.map_version}" if self.map_version else ""


def _too_large(body: bytes, items: Sequence[object]) -> bool:
    """Whether a gateway would refuse a body that could be made smaller."""
    return len(body) > MAX_BATCH_BYTES // 2 and len(items) > 1


def _halves(items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    middle = len(items) // 2
    return items[:middle], items[middle:]


def _not_fresh(arguments: calls.Reserve) -> bytes:
    """The repeat of a reserve has to look for what the call before it got."""
    return calls.RESERVE.write_request(replace(arguments, request=replace(arguments.request, fresh=False)))
