"""The sharded store: the contract over many partitions, each of them a store of its own.

What goes by task_id finds its partition in the id; new tasks and reserve go by the partition map. A batch over
several partitions is one call to each, all at the same time, so "all or nothing" holds within a partition: after
an error the call is repeated with the same ids.

Workers maintain each partition by itself, as `maintenance/service.py` says. For callers that maintain all of them as
one, `lead` holds all partitions or none, and gives the epoch of partition 0; the others have epochs of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import chain, islice, zip_longest
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import Enqueued, Extension, Hold, NewTask, State, Task
from holdfast.errors import StaleEpoch
from holdfast.stores.capabilities import NO_CAPABILITIES, Capabilities, PartialView
from holdfast.stores.contract import (
    LIST_OF_WORKERS,
    MAINTENANCE,
    MAINTENANCE_WAKEUP,
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
from holdfast.stores.sharded import pages
from holdfast.stores.sharded.documents import ShardedDocuments, check_places
from holdfast.stores.sharded.gather import all_of, in_order
from holdfast.stores.sharded.reserve import reserve
from holdfast.stores.sharded.router import NO_EPOCH, Router

Item = TypeVar("Item")

#: A call waits no longer than this by one map: a newer one may have the queue in more partitions.
_MAP_MS: Final = 5_000


class ShardedStore(Store):
    """Many partitions as one store; `stores` are partition 0, 1, 2…, and belong to this store from now on."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.url = ",".join(store.url for store in stores)
        self._stores = tuple(stores)
        self._router = Router(self._stores)
        self._documents = ShardedDocuments(self._router)
        #: The calls of this store and its views that take several steps.
        self._under_way: set[object] = set()
        offered = [store.capabilities for store in self._stores]
        self.capabilities = Capabilities(
            enqueue_now=self._enqueue_now if all(each.enqueue_now for each in offered) else None,
            completion=self._completion if all(each.completion for each in offered) else None,
            in_part=self._in_part,
        )

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Records each task in the partition that its id carries, by the map that this store knows."""
        del map_version
        if not tasks:
            return []
        with self._call():
            check_places(await self._router.map(), tasks)
            groups = self._router.grouped(tasks, lambda task: task.task_id)
            answers = await all_of(
                {n: self._enqueue(n, [tasks[place] for place in places]) for n, places in groups.items()}
            )
            return in_order(groups, answers)

    async def _enqueue(self, partition: int, tasks: Sequence[NewTask]) -> list[Enqueued]:
        return await self._router.routed(partition, lambda store, version: store.enqueue(tasks, map_version=version))

    def _enqueue_now(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued] | None:
        """Records tasks that all belong to one partition, if the map is known."""
        del map_version
        current = self._router.known_map
        places = {self._router.partition(task.task_id) for task in tasks}
        if current is None or len(places) != 1:
            return None
        check_places(current, tasks)
        enqueue_now = self._stores[places.pop()].capabilities.enqueue_now
        return None if enqueue_now is None else enqueue_now(tasks, map_version=current.version)

    def _completion(self, task_id: str, token: str, rest_ms: int) -> Any:
        """The block in the database where the task is."""
        completion = self._stores[self._router.partition(task_id)].capabilities.completion
        return None if completion is None else completion(task_id, token, rest_ms)

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles, then claims from as few partitions as have enough; atomic within each."""
        with self._call():
            return await reserve(self._router, request, await self._with_own_epochs(settle))

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Renews leases, each in its partition."""
        return await self._router.scattered(
            holds, lambda hold: hold.task_id, lambda store, own: store.extend(own, lease_ms, check_only=check_only)
        )

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes, each in its partition."""
        with self._call():
            return await self._router.scattered(
                await self._with_own_epochs(changes),
                lambda change: change.task_id,
                lambda store, own: store.apply(own),
            )

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until one of the partitions where a wake-up can come from sends it."""
        current = await self._router.map()
        timeout_ms = min(timeout_ms, _MAP_MS)
        places: dict[int, list[str]] = {}
        for wakeup in wakeups:
            for n in range(len(self._stores)) if wakeup == MAINTENANCE_WAKEUP else current.reach(wakeup):
                places.setdefault(n, []).append(wakeup)
        waits = [self._stores[n].wait(names, timeout_ms) for n, names in places.items()]
        return await waits[0] if len(waits) == 1 else await _first_wakeup([asyncio.ensure_future(w) for w in waits])

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks, each from its partition."""
        return await self._router.scattered(task_ids, lambda task_id: task_id, lambda store, own: store.get(own))

    async def find(self, query: Query) -> Page:
        """Tasks of all partitions that match, newest first."""
        with self._call():
            await self._router.map()
            return await pages.find(self._router, query)

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues over all partitions."""
        with self._call():
            await self._router.map()
            found = await self._router.from_those_there({n: store.counts for n, store in enumerate(self._stores)})
        queues: dict[str, list[QueueCounts]] = {}
        for entry in chain.from_iterable(found.values()):
            queues.setdefault(entry.queue, []).append(entry)
        return [_summed(queue, queues[queue]) for queue in sorted(queues)]

    # -- documents ------------------------------------------------------------------------------------------

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        """The documents of a kind, from the partitions where they lie."""
        with self._call():
            return await self._documents.read(kind, names, due_within_ms, cursor, limit)

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Replaces, creates or removes a document where it lies."""
        with self._call():
            return await self._documents.write(write)

    # -- workers and leadership -----------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records in partition 0 that a worker lives."""
        await self._router.map()
        return await self._stores[LIST_OF_WORKERS].announce(worker, ttl_ms)

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of; partition 0 keeps their list."""
        await self._router.map()
        listed = {LIST_OF_WORKERS: self._stores[LIST_OF_WORKERS].workers}
        found = await self._router.from_those_there(listed, all_may_be_away=True)
        return found.get(LIST_OF_WORKERS, [])

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """The maintenance has a leader in every partition, all of them or none; any other name lies in partition 0."""
        await self._router.map()
        with self._call():
            if name == MAINTENANCE and owner is not None:
                return await self._lead_all(owner, ttl_ms)
            return await self._stores[0].lead(name, owner, ttl_ms)

    async def _lead_all(self, owner: str, ttl_ms: int) -> Leadership:
        first = await self._stores[0].lead(MAINTENANCE, owner, ttl_ms)
        if ttl_ms > 0 and not first.held:
            return first
        for store in self._stores[1:]:
            leadership = await store.lead(MAINTENANCE, owner, ttl_ms)
            if ttl_ms > 0 and not leadership.held:
                await self._lead_all(owner, 0)
                return replace(leadership, epoch=first.epoch)
        return first

    # -- maintenance of all partitions ----------------------------------------------------------------------

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks of every partition to `ready`, at most `limit` in all."""
        count = 0
        due: list[int] = []
        with self._call():
            for store, own in zip(self._stores, await self._all_epochs(epoch), strict=True):
                promoted = await store.promote(own, limit - count)
                count += promoted.count
                due += [] if promoted.next_due_in_ms is None else [promoted.next_due_in_ms]
        return Promoted(count, min(due, default=None))

    async def expired(self, limit: int = 1_000) -> Expired:
        """Expired claims and unstarted tasks of all partitions by turns, at most `limit` of each in all."""
        found = await self._router.from_all(lambda store: store.expired(limit))
        return Expired(
            _by_turns([each.claims for each in found.values()], limit),
            _by_turns([each.unstarted for each in found.values()], limit),
        )

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes what is past its retention in every partition, at most `limit` in all."""
        pruned = 0
        with self._call():
            for store, own in zip(self._stores, await self._all_epochs(epoch), strict=True):
                pruned += await store.prune(own, retention, limit - pruned)
        return pruned

    async def _all_epochs(self, epoch: int) -> list[int]:
        found = await self._router.epochs(epoch)
        if NO_EPOCH in found:
            raise StaleEpoch(f"epoch {epoch} is not that of a leader of all partitions")
        return found

    async def _with_own_epochs(self, changes: Sequence[Change]) -> Sequence[Change]:
        """The changes, each with the epoch of its own partition where it has one to guard it."""
        given = {change.epoch for change in changes if change.epoch is not None}
        if not given:
            return changes
        known = {epoch: await self._router.epochs(epoch) for epoch in given}
        return [
            change
            if change.epoch is None
            else replace(change, epoch=known[change.epoch][self._router.partition(change.task_id)])
            for change in changes
        ]

    # -- life -----------------------------------------------------------------------------------------------

    async def placement(self) -> Placement:
        """By the partition map."""
        await self._router.map()
        return self._router.place

    async def partitions(self) -> Sequence[Store]:
        """The stores behind this one."""
        return self._stores

    def _in_part(self, *, until_deadline: bool = False) -> PartialView:
        """A store over the same partitions that does without those that do not answer."""
        view = copy(self)
        view.capabilities = NO_CAPABILITIES
        view._router = self._router.in_part(until_deadline=until_deadline)  # noqa: SLF001
        view._documents = ShardedDocuments(view._router)  # noqa: SLF001
        assert view._router.left_out is not None  # noqa: S101, SLF001
        return PartialView(view, view._router.left_out)  # noqa: SLF001

    async def probe(self) -> list[Finding]:
        """What the partitions say of themselves."""
        current = await self._router.map()
        found = await self._router.from_all(lambda store: store.probe())
        text = f"{len(self._stores)} partitions, map version {current.version}"
        findings = [replace(line, text=f"partition {n}: {line.text}") for n, lines in found.items() for line in lines]
        return [Finding(level="ok", check="partitions", text=text), *findings]

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
        call = object()
        self._under_way.add(call)
        try:
            yield
        finally:
            self._under_way.remove(call)


def _summed(queue: str, entries: Sequence[QueueCounts]) -> QueueCounts:
    states: dict[State, int] = {}
    for entry in entries:
        for state, number in entry.states.items():
            states[state] = states.get(state, 0) + number
    oldest = [entry.oldest_ready_ms for entry in entries if entry.oldest_ready_ms is not None]
    return QueueCounts(
        queue=queue,
        paused=any(entry.paused for entry in entries),
        step_ms=next((entry.step_ms for entry in entries if entry.step_ms != AGED_STEP_MS), AGED_STEP_MS),
        states=states,
        oldest_ready_ms=max(oldest, default=None),
    )


def _by_turns(lists: Sequence[Sequence[Item]], limit: int) -> list[Item]:
    """One of each list after the other, so that a partition with many does not keep back those of the others."""
    rounds = chain.from_iterable(zip_longest(*lists))
    return list(islice((item for item in rounds if item is not None), limit))


async def _first_wakeup(waits: Sequence[asyncio.Future[bool]]) -> bool:
    """True as soon as one of them was notified; the others are cancelled."""
    try:
        for done in asyncio.as_completed(waits):
            if await done:
                return True
        return False
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
