"""Partitions: who keeps them, who looks after them, and over how many of them a queue is spread."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.core.names import check_queue
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import FINAL_STATES
from holdfast.errors import BadOption, StaleMap, StoreError
from holdfast.stores.contract import UPKEEP_DUTY, Store

_TRIES = 5


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One partition; what could not be asked because it does not answer is None."""

    partition: int
    server: str
    #: The worker that does the upkeep, None if nobody does at the moment.
    owner: str | None = None
    epoch: int | None = None
    #: Tasks that have not ended: waiting, delayed or running.
    depth: int | None = None
    error: str | None = None


async def partition_table(store: Store) -> list[PartitionRow]:
    """Every partition in order; one that does not answer is listed as such."""
    partitions = await asyncio.to_thread(store.partitions)  # a gateway may take its time
    return list(await asyncio.gather(*(_row(n, part) for n, part in enumerate(partitions))))


async def spread(store: Store, queue: str, width: int) -> PartitionMap:
    """Lets new tasks of this queue go to that many partitions; those in others are still worked off."""
    check_queue(queue)
    for _ in range(_TRIES):
        current = await store.partition_map()
        if len(current.shards) == 1:
            raise BadOption(f"{store.url} has one partition; a queue is spread over the partitions of several URLs")
        if current.spread.get(queue, 1) == width:
            return current
        try:
            return await store.put_partition_map(current.with_spread(queue, width))
        except StaleMap:
            continue  # Somebody else has changed the map meanwhile.
    raise StaleMap(f"the partition map of {store.url} changes all the time; try again")


async def _row(number: int, store: Store) -> PartitionRow:
    try:
        # Letting go of what one does not hold changes nothing, and tells who does.
        duty = await store.hold_duty(UPKEEP_DUTY, "", 0)
        counts = await store.counts()
    except StoreError as error:
        return PartitionRow(partition=number, server=store.url, error=str(error))
    depth = sum(n for entry in counts for state, n in entry.states.items() if state not in FINAL_STATES)
    return PartitionRow(partition=number, server=store.url, owner=duty.owner or None, epoch=duty.epoch, depth=depth)
