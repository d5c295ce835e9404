"""`--burst`: when there is nothing left to do."""

from __future__ import annotations

import asyncio

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.stores.contract import MAX_BATCH, UPKEEP_DUTY, Store
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.crew import Crew

#: How long nothing may have happened: a task that has just ended may have enqueued others.
IDLE_MS = 1_000
_LOOK_EVERY_S = 0.1
_DUTY_TTL_MS = 5_000


async def until_idle(store: Store, owner: str, crew: Crew, clock: Clock) -> None:
    """Returns when nothing runs, nothing is due, and every child has looked for more and found nothing.

    Tasks that wait for a later time are not waited for.
    """
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if _idle(crew, clock) and await _nothing_due(store, owner) and _idle(crew, clock):
            return


def _idle(crew: Crew, clock: Clock) -> bool:
    quiet_since_ms = clock.monotonic_ms() - IDLE_MS
    return all(seat.settled for seat in crew.seats) and all(
        _is_idle(child, quiet_since_ms) for child in crew.children()
    )


def _is_idle(child: ChildProcess, quiet_since_ms: int) -> bool:
    looked_at_ms = child.reserved_at_ms
    nothing_found = looked_at_ms is not None and looked_at_ms >= child.changed_at_ms
    return not child.holds and nothing_found and child.changed_at_ms <= quiet_since_ms


async def _nothing_due(store: Store, owner: str) -> bool:
    """Whether no task has become ready just now that was due before, in any partition."""
    try:
        return not any([await _promotes(partition, owner) for partition in store.partitions()])
    except StoreError:
        return False


async def _promotes(partition: Store, owner: str) -> bool:
    """Does one round of what the upkeep does, so that nothing is due afterwards; True if there was something to do.

    Where another process has this duty and has renewed it lately, it does its rounds by itself.
    """
    duty = await partition.hold_duty(UPKEEP_DUTY, owner, _DUTY_TTL_MS)
    if duty.held:
        return (await partition.promote(duty.epoch, MAX_BATCH)).count > 0
    return duty.expires_in_ms < _DUTY_TTL_MS // 2
