"""The sharded store: the contract over many partitions, each of them a store of its own.

What goes by task_id finds its partition in the id; new tasks and reserve go by the partition map. A batch over
several partitions is one call to each, all at the same time, so "all or nothing" holds within a partition: after
an error the call is repeated with the same ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.errors import StaleMap
from holdfast.stores.contract import (
    UPKEEP_BELL,
    UPKEEP_DUTY,
    Discard,
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
from holdfast.stores.sharded import keeping, looking, reserving, scheduling, upkeep
from holdfast.stores.sharded.documents import Documents
from holdfast.stores.sharded.routing import Router, all_of, in_order

#: Nobody listens longer than this by one map: a newer one may have the queue in more partitions.
_MAP_MS = 5_000


class ShardedStore(Documents):
    """Many partitions behind one face; `stores` are partition 0, 1, 2…, and belong to this store from now on."""

    #: Calls through this store are routed by itself.
    map_version = 0

    def __init__(self, stores: Sequence[Store]) -> None:
        self.url = ",".join(store.url for store in stores)
        self._stores = tuple(stores)
        self._router = Router(self._stores)
        self._under_way = 0

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records each task in the partition that its id carries."""
        if not tasks:
            return []
        with self._call():
            _check_places(await self._router.map(), tasks)
            groups = self._router.grouped(tasks, lambda task: task.task_id)
            answers = await all_of(
                {n: self._enqueue(n, [tasks[place] for place in places]) for n, places in groups.items()}
            )
            return in_order(groups, answers)

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """Records tasks that all belong to one partition, if the map is known."""
        current = self._router.known_map
        places = {self._router.partition(task.task_id) for task in tasks}
        if current is None or len(places) != 1:
            return None
        _check_places(current, tasks)
        return self._stores[places.pop()].enqueue_now(tasks)

    async def _enqueue(self, partition: int, tasks: Sequence[NewTask]) -> list[Enqueued]:
        return await self._router.routed(partition, lambda store: store.enqueue(tasks))

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles, then claims from as few partitions as have enough; atomic within each."""
        with self._call():
            return await reserving.reserve(self._router, request, await self._with_own_epochs(settle))

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Renews leases, each in its partition."""
        return await self._router.scattered(
            holds, lambda hold: hold.task_id, lambda store, own: store.extend(own, lease_ms)
        )

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes, each in its partition."""
        with self._call():
            return await self._router.scattered(
                await self._with_own_epochs(changes),
                lambda change: change.task_id,
                lambda store, own: store.apply(own),
            )

    async def _with_own_epochs(self, changes: Sequence[Change]) -> Sequence[Change]:
        if all(change.epoch is None for change in changes):
            return changes
        places = [self._router.partition(change.task_id) for change in changes]
        return await upkeep.with_own_epochs(self._stores, changes, places)

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Keeps a value in the partition of its key; atomic with the look at the claim if that lies there too."""
        with self._call():
            return await keeping.keep(self._router, key, value, ttl_ms, hold)

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks of every partition to `ready`."""
        with self._call():
            return await upkeep.promote(self._stores, epoch, limit)

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out, partition by partition."""
        found = await self._router.from_all(lambda store: store.expired(limit))
        return [lapsed for claims in found for lapsed in claims][:limit]

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Tasks that should have begun by now, partition by partition."""
        found = await self._router.from_all(lambda store: store.overdue(limit))
        return [task_id for ids in found for task_id in ids][:limit]

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until a bell is rung in one of the partitions where it can ring."""
        current = await self._router.map()
        timeout_ms = min(timeout_ms, _MAP_MS)
        places: dict[int, list[str]] = {}
        for bell in bells:
            for n in range(len(self._stores)) if bell == UPKEEP_BELL else current.reach(bell):
                places.setdefault(n, []).append(bell)
        waits = [self._stores[n].wait(names, timeout_ms) for n, names in places.items()]
        return await waits[0] if len(waits) == 1 else await _first_ring([asyncio.ensure_future(w) for w in waits])

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks, each from its partition."""
        return await self._router.scattered(task_ids, lambda task_id: task_id, lambda store, own: store.get(own))

    async def kept(self, key: str) -> bytes | None:
        """What is kept under a key, from its partition."""
        return await keeping.kept(self._router, key)

    async def find(self, query: Query) -> Page:
        """Tasks of all partitions that match, newest first."""
        with self._call():
            await self._router.map()
            return await looking.find(self._stores, query)

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues over all partitions."""
        found = await self._router.from_all(lambda store: store.counts())
        return looking.sum_up([entry for counts in found for entry in counts])

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of; partition 0 keeps their list."""
        await self._router.map()
        return await self._stores[0].workers()

    async def discards(self, limit: int = 100) -> list[Discard]:
        """The newest records of discarded tasks, of all partitions."""
        found = await self._router.from_all(lambda store: store.discards(limit))
        records = [record for discards in found for record in discards]
        return sorted(records, key=lambda record: -record.discarded_at_ms)[:limit]

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records in partition 0 that a worker lives."""
        await self._router.map()
        return await self._stores[0].announce(worker, ttl_ms)

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Leaves orders for a worker in partition 0, where its record is."""
        await self._router.map()
        return await self._stores[0].order(worker_id, orders)

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """The upkeep is a duty on every partition, any other one is kept by partition 0."""
        await self._router.map()
        if name != UPKEEP_DUTY:
            return await self._stores[0].hold_duty(name, owner, ttl_ms)
        with self._call():
            return await upkeep.hold_duty(self._stores, owner, ttl_ms)

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes a queue in every partition."""
        await self._router.from_all(lambda store: store.pause(queue, paused))

    async def set_step(self, queue: str, step_ms: int) -> None:
        """What a level of priority is worth in a queue, in every partition."""
        await self._router.from_all(lambda store: store.set_step(queue, step_ms))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention in every partition."""
        with self._call():
            return await upkeep.prune(self._stores, epoch, retention, limit)

    async def probe(self) -> list[Finding]:
        """What the partitions say of themselves."""
        current = await self._router.map()
        found = await self._router.from_all(lambda store: store.probe())
        text = f"{len(self._stores)} partitions, map version {current.version}"
        findings = [line for n, lines in enumerate(found) for line in looking.labelled(lines, n)]
        return [Finding(level="ok", check="partitions", text=text), *findings]

    # -- schedules ------------------------------------------------------------------------------------------

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """The schedules of all partitions, the soonest first."""
        with self._call():
            return await scheduling.schedules(self._router, due_within_ms, limit)

    async def schedule(self, name: str) -> Schedule | None:
        """One schedule, wherever it lies."""
        with self._call():
            return await scheduling.schedule(self._router, name)

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Replaces a schedule in the first partition of its queue, where the tasks of its ticks go."""
        with self._call():
            _check_places(await self._router.map(), tasks)
            return await scheduling.put(self._router, name, new, expected, tasks, epoch)

    # -- partitions -----------------------------------------------------------------------------------------

    async def partition_map(self) -> PartitionMap:
        """The newest partition map."""
        return await self._router.refresh()

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Makes a new map the current one, first in partition 0, which decides."""
        await self._router.map()
        with self._call():
            return await self._router.change(new)

    async def placement(self) -> Placement:
        """By the partition map."""
        await self._router.map()
        return self._router.place

    def partitions(self) -> Sequence[Store]:
        """The stores behind this one."""
        return self._stores

    # -- life -----------------------------------------------------------------------------------------------

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings every partition up to this version, and divides a new store."""
        found = await all_of({n: store.migrate(dry_run=dry_run) for n, store in enumerate(self._stores)})
        if not dry_run:
            await self._router.map()
        return list(dict.fromkeys(step for steps in found.values() for step in steps))

    async def close(self) -> None:
        """Closes the partitions when the calls under way have ended."""
        while self._under_way:  # noqa: ASYNC110  (they may be on other event loops)
            await asyncio.sleep(0.001)
        for store in self._stores:
            await store.close()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """A call that takes several steps: `close` waits for the last of them."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


def _check_places(current: PartitionMap, tasks: Sequence[NewTask]) -> None:
    """Refuses a task that would lie where no worker looks for it, or where its own repeat would not meet it."""
    routes = {(task.queue, task.task_id[12:16], task.request_id is not None) for task in tasks}
    for queue, digits, has_request_id in routes:
        if not current.allows(queue, int(digits, 16), has_request_id=has_request_id):
            raise StaleMap(
                f"a task of queue {queue!r} carries partition {int(digits, 16)}, where the partition map of version "
                f"{current.version} has none of its tasks: make its id with the store's placement"
            )


async def _first_ring(waits: Sequence[asyncio.Future[bool]]) -> bool:
    """True as soon as one of them was rung; the others are called off."""
    try:
        for done in asyncio.as_completed(waits):
            if await done:
                return True
        return False
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
