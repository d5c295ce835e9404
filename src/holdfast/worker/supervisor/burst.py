"""`--burst`: when there is nothing left to do."""

from __future__ import annotations

import asyncio

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.stores.contract import MAINTENANCE, MAX_BATCH, Store
from holdfast.worker.supervisor.pool import ChildPool
from holdfast.worker.supervisor.process import ChildProcess

#: How long nothing may have happened: a task that has just ended may have enqueued others.
IDLE_MS = 1_000
_LOOK_EVERY_S = 0.1
_LEADER_TTL_MS = 5_000


async def until_idle(store: Store, owner: str, pool: ChildPool, clock: Clock) -> None:
    """Returns when nothing runs, nothing is due, and every child has looked for more and found nothing.

    Tasks that wait for a later time are not waited for.
    """
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if _idle(pool, clock) and await _nothing_due(store, owner) and _idle(pool, clock):
            return


def _idle(pool: ChildPool, clock: Clock) -> bool:
    quiet_since_ms = clock.monotonic_ms() - IDLE_MS
    return all(slot.steady for slot in pool.slots) and all(_is_idle(child, quiet_since_ms) for child in pool.children())


def _is_idle(child: ChildProcess, quiet_since_ms: int) -> bool:
    looked_at_ms = child.reserved_at_ms
    nothing_found = looked_at_ms is not None and looked_at_ms >= child.changed_at_ms
    return not child.holds and nothing_found and child.changed_at_ms <= quiet_since_ms


async def _nothing_due(store: Store, owner: str) -> bool:
    """Whether no task has become ready just now that was due before, in any partition."""
    try:
        return not any([await _promotes(partition, owner) for partition in await store.partitions()])
    except HoldfastError:
        return False


async def _promotes(partition: Store, owner: str) -> bool:
    """Does one round of maintenance, so that nothing is due afterwards; True if there was something to do.

    Where another process is the leader and has renewed its leadership lately, that process does its rounds.
    """
    leadership = await partition.lead(MAINTENANCE, owner, _LEADER_TTL_MS)
    if leadership.held:
        return (await partition.promote(leadership.epoch, MAX_BATCH)).count > 0
    return leadership.expires_in_ms < _LEADER_TTL_MS // 2
