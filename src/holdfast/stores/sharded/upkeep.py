"""The upkeep of all partitions at once, for those who want it as one.

Workers do not go this way: they look after each partition by itself, as `maintenance/service.py` says. Here the
duty is held on all partitions or not at all, and the epoch that is told is that of partition 0. The others have
epochs of their own; which of them belong to it is read off their owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.lifecycle import Change
from holdfast.errors import StaleEpoch
from holdfast.stores.contract import UPKEEP_DUTY, Duty, Promoted, Retention, Store
from holdfast.stores.sharded.routing import all_of

#: An epoch that no owner ever has.
_NOBODYS = -1


async def hold_duty(stores: Sequence[Store], owner: str, ttl_ms: int) -> Duty:
    """Takes, keeps or lets go the upkeep of every partition; all or none."""
    first = await stores[0].hold_duty(UPKEEP_DUTY, owner, ttl_ms)
    if ttl_ms > 0 and not first.held:
        return first
    for store in stores[1:]:
        duty = await store.hold_duty(UPKEEP_DUTY, owner, ttl_ms)
        if ttl_ms > 0 and not duty.held:
            await hold_duty(stores, owner, 0)
            return replace(duty, epoch=first.epoch)
    return first


async def epochs(stores: Sequence[Store], epoch: int) -> list[int]:
    """The epoch of each partition that belongs to this one of partition 0, `_NOBODYS` where it is over."""
    duties = await all_of({n: look_at_upkeep(store) for n, store in enumerate(stores)})
    if duties[0].epoch != epoch:
        return [_NOBODYS] * len(stores)
    return [duty.epoch if duty.owner == duties[0].owner else _NOBODYS for duty in duties.values()]


async def look_at_upkeep(store: Store) -> Duty:
    """Who looks after a partition; letting go of what one does not hold changes nothing."""
    return await store.hold_duty(UPKEEP_DUTY, "", 0)


async def promote(stores: Sequence[Store], epoch: int, limit: int) -> Promoted:
    """Due tasks of every partition to `ready`, at most `limit` in all."""
    count = 0
    due: list[int] = []
    for store, own in zip(stores, await _all_epochs(stores, epoch), strict=True):
        promoted = await store.promote(own, limit - count)
        count += promoted.count
        due += [] if promoted.next_due_in_ms is None else [promoted.next_due_in_ms]
    return Promoted(count, min(due, default=None))


async def prune(stores: Sequence[Store], epoch: int, retention: Retention, limit: int) -> int:
    """Finished tasks of every partition past their retention, at most `limit` in all."""
    pruned = 0
    for store, own in zip(stores, await _all_epochs(stores, epoch), strict=True):
        pruned += await store.prune(own, retention, limit - pruned)
    return pruned


async def with_own_epochs(stores: Sequence[Store], changes: Sequence[Change], places: Sequence[int]) -> list[Change]:
    """The changes, each with the epoch of its own partition where it has one to guard it."""
    known = {epoch: await epochs(stores, epoch) for epoch in {change.epoch for change in changes} if epoch is not None}
    return [
        change if change.epoch is None else replace(change, epoch=known[change.epoch][place])
        for change, place in zip(changes, places, strict=True)
    ]


async def _all_epochs(stores: Sequence[Store], epoch: int) -> list[int]:
    found = await epochs(stores, epoch)
    if _NOBODYS in found:
        raise StaleEpoch(f"epoch {epoch} is not that of the one who looks after all partitions")
    return found
