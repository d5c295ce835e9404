"""Workers and partitions: listed, ordered, spread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.admin.inspect import every_page, worker_table
from holdfast.core.names import check_queue
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import FINAL_STATES, State, Task
from holdfast.errors import BadOption, StaleMap, StoreError, UnknownWorker
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Query, Store, WorkerOrders, WorkerRecord

#: How many running tasks, of all workers, are looked through at most.
LOOK_LIMIT = 100_000
#: Up to this many running tasks are counted by worker.
_COUNTED = 1_000


async def one_worker(store: Store, name: str) -> WorkerRecord:
    """The worker with this id, or the only one whose id begins like that, or `UnknownWorker`."""
    found = [worker for worker in await worker_table(store) if worker.worker_id.startswith(name)]
    exact = [worker for worker in found if worker.worker_id == name]
    if not found:
        raise UnknownWorker(f"no worker {name} in {store.url}; `holdfast workers ls` lists them")
    if len(exact or found) > 1:
        raise UnknownWorker(f"{len(found)} workers begin with {name}; write more of the id")
    return (exact or found)[0]


async def current_workers(store: Store) -> list[WorkerRecord]:
    """Every worker heard of and not yet pruned, the living first, each with the number of its runs as of now.

    A worker tells that number with its heartbeat, which is up to 10 s old. With many running tasks it is left at that.
    """
    workers, counts = await worker_table(store), await store.counts()
    if not 0 < sum(each.states.get(State.CLAIMED, 0) for each in counts) <= _COUNTED:
        return workers
    page = await store.find(Query(states=frozenset({State.CLAIMED}), limit=_COUNTED))
    holders = [f"{task.worker_id}:" for task in page.tasks]
    return [as_of_now(worker, sum(name.startswith(f"{worker.worker_id}:") for name in holders)) for worker in workers]


def as_of_now(worker: WorkerRecord, claimed: int) -> WorkerRecord:
    """The record with at least as many runs as it has claimed tasks, within its slots."""
    slots = worker.processes * worker.concurrency  # a worker also claims a few tasks ahead
    return replace(worker, running=max(worker.running, min(claimed, slots)))


async def running_tasks(store: Store, worker: WorkerRecord) -> list[Task]:
    """What its processes hold, the oldest claim first."""
    query = Query(states=frozenset({State.CLAIMED}))
    # Each process claims under a name of its own: the worker's id and its place in it.
    of_worker = f"{worker.worker_id}:"
    found = [
        task
        async for page in every_page(store, query, LOOK_LIMIT)
        for task in page
        if f"{task.worker_id}:".startswith(of_worker)
    ]
    return sorted(found, key=lambda task: task.claimed_at_ms or 0)


async def set_concurrency(store: Store, names: Sequence[str], concurrency: int | None) -> list[str]:
    """Sets how many tasks run at once in each process (None: as started) of these workers, or of all that live.

    It takes effect at their next heartbeat. Gives their ids.
    """
    return await _order(store, names, lambda orders: replace(orders, concurrency=concurrency))


async def set_mode(store: Store, names: Sequence[str], mode: Literal["run", "drain", "stop"]) -> list[str]:
    """Has these workers, or all that live, claim nothing more, stop gracefully, or claim again; gives their ids.

    It takes effect at their next heartbeat. A worker that stops finishes its running tasks within its grace period.
    """
    return await _order(store, names, lambda orders: replace(orders, mode=mode))


async def _order(store: Store, names: Sequence[str], change: Callable[[WorkerOrders], WorkerOrders]) -> list[str]:
    if names:
        chosen = [await one_worker(store, name) for name in names]
    else:
        chosen = [worker for worker in await worker_table(store) if worker.alive]
    for worker in chosen:
        if not worker.alive:
            raise UnknownWorker(f"worker {worker.worker_id} is gone; `holdfast workers ls` lists those that live")
    for worker in chosen:
        await documents.change_orders(store, worker.worker_id, change)
    return [worker.worker_id for worker in chosen]


# -- partitions ----------------------------------------------------------------------------------------------


_TRIES = 5


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One partition; what could not be asked because it does not answer is None."""

    partition: int
    server: str
    #: The worker that leads the maintenance, None if no worker does at the moment.
    owner: str | None = None
    epoch: int | None = None
    #: Tasks that have not ended: waiting, delayed or running.
    depth: int | None = None
    error: str | None = None


async def partition_table(store: Store) -> list[PartitionRow]:
    """Every partition in order; one that does not answer is listed as such."""
    partitions = await store.partitions()
    return list(await asyncio.gather(*(_row(n, part) for n, part in enumerate(partitions))))


async def spread(store: Store, queue: str, width: int) -> PartitionMap:
    """Spreads new tasks of this queue over `width` partitions; workers still drain the other partitions."""
    check_queue(queue)
    for _ in range(_TRIES):
        current = await documents.partition_map(store)
        if len(current.shards) == 1:
            raise BadOption(f"{store.url} has one partition; a queue is spread over the partitions of several URLs")
        if current.spread.get(queue, 1) == width:
            return current
        try:
            return await documents.put_partition_map(store, current.with_spread(queue, width))
        except StaleMap:
            continue  # another caller has changed the map meanwhile
    raise StaleMap(f"the partition map of {store.url} changes all the time; try again")


async def _row(number: int, store: Store) -> PartitionRow:
    try:
        leadership = await store.lead(MAINTENANCE, None)
        counts = await store.counts()
    except StoreError as error:
        return PartitionRow(partition=number, server=store.url, error=str(error))
    depth = sum(n for entry in counts for state, n in entry.states.items() if state not in FINAL_STATES)
    return PartitionRow(
        partition=number, server=store.url, owner=leadership.owner or None, epoch=leadership.epoch, depth=depth
    )
