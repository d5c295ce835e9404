"""The partition map: versions one after the other, and no call that was routed by an old one."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec.structs import replace

from holdfast.core.partitions import PartitionMap
from holdfast.core.task import State
from holdfast.errors import StaleMap
from holdfast.stores.contract import UPKEEP_DUTY, Store
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect, expect_true
from holdfast.testing.kit import Kit, ack, every_minute

group = Group("partition_map")


async def _next(store: Store, queue: str = "hot") -> PartitionMap:
    """The next version of the map, put into the store."""
    return await store.put_partition_map((await store.partition_map()).with_spread(queue, 1))


async def _refused(what: str, call: Awaitable[object]) -> None:
    try:
        await call
    except StaleMap:
        return
    raise AssertionError(f"{what} is refused")


@group.case
async def next_version_is_kept(kit: Kit) -> None:
    """The next version of the map replaces the one before it."""
    before = await kit.store.partition_map()
    new = before.with_spread("hot", 1)
    expect("answer", await kit.store.put_partition_map(new), new)
    expect("map", await kit.store.partition_map(), new)


@group.case
async def same_version_again_is_a_success(kit: Kit) -> None:
    """The same map sent again after a lost reply is a success, and changes nothing."""
    new = await _next(kit.store)
    expect("answer", await kit.store.put_partition_map(new), new)
    expect("map", await kit.store.partition_map(), new)


@group.case
async def other_versions_are_refused(kit: Kit) -> None:
    """A map that is not the next version, or another one of the same, is refused with `StaleMap`."""
    old = await kit.store.partition_map()
    current = await _next(kit.store)
    for wrong in (
        old,
        replace(old, version=current.version - 1, spread={"other": 1}),
        replace(current, spread={"other": 1}),
        replace(current, version=current.version + 2),
    ):
        await _refused(f"version {wrong.version} after {current.version}", kit.store.put_partition_map(wrong))
    expect("map", await kit.store.partition_map(), current)


@group.case
async def copies_catch_up(kit: Kit) -> None:
    """A partition other than the first takes any newer map, since it copies what the first has decided."""
    part = kit.store.partitions()[-1]
    newest = await part.partition_map()
    newest = replace(newest, version=newest.version + 5, partition=1)
    expect("answer", await part.put_partition_map(newest), newest)
    await _refused("an older copy", part.put_partition_map(replace(newest, version=newest.version - 1)))
    expect("map", await part.partition_map(), newest)


@group.case
async def old_routing_records_nothing(kit: Kit) -> None:
    """An enqueue that was routed by an older map is refused, and records nothing; by the current one it is taken."""
    part = kit.store.partitions()[0]
    task = kit.new_task()
    old = part.map_version
    current = await _next(part)
    part.map_version = old
    await _refused("an enqueue by an old map", part.enqueue([task]))
    expect("task", await part.get([task.task_id]), [None])
    part.map_version = current.version
    expect("created", [answer.created for answer in await part.enqueue([task])], [True])


@group.case
async def old_routing_claims_and_settles_nothing(kit: Kit) -> None:
    """A reserve that was routed by an older map is refused with its settlements; by the current one it is served."""
    part = kit.store.partitions()[0]
    part.map_version = (await part.partition_map()).version
    first, second = kit.new_task(), kit.new_task()
    await part.enqueue([first, second])
    [claim] = (await part.reserve(kit.request(1))).tasks
    old = part.map_version
    current = await _next(part)
    part.map_version = old
    request = kit.request(1)
    await _refused("a reserve by an old map", part.reserve(request, [ack(claim)]))
    states = [task and task.state for task in await part.get([claim.task_id])]
    expect("state", states, [State.CLAIMED])
    part.map_version = current.version
    answer = await part.reserve(request, [ack(claim)])
    expect("verdicts", [(verdict.applied, verdict.repeated) for verdict in answer.verdicts], [(True, False)])
    expect("tasks", len(answer.tasks), 1)


@group.case
async def old_routing_ticks_nothing(kit: Kit) -> None:
    """A schedule put with tasks by an older map is refused with them, but not when the partition's owner does it."""
    part = kit.store.partitions()[0]
    task = kit.new_task(request_id="tick-1")
    old = part.map_version
    await _next(part)
    part.map_version = old
    schedule = every_minute()
    await _refused("a tick by an old map", part.put_schedule("nightly", schedule, 0, [task]))
    expect("schedule and task", (await part.schedule("nightly"), await part.get([task.task_id])), (None, [None]))
    epoch = (await part.hold_duty(UPKEEP_DUTY, "upkeep-1", 10_000)).epoch
    expect("the owner's", await part.put_schedule("nightly", schedule, 0, [task], epoch), True)
    expect("recorded", [record is not None for record in await part.get([task.task_id])], [True])


@group.case
async def ids_lead_to_tasks_whatever_the_map(kit: Kit) -> None:
    """What goes by task_id goes on by an old map: no claim is lost because the map has changed."""
    claim = await kit.claim()
    await _next(kit.store)
    expect("task", (await kit.record(claim.task_id)).state, State.CLAIMED)
    expect("ack", (await kit.apply(ack(claim))).applied, True)


@group.case
async def fresh_claims_come_on_top(kit: Kit) -> None:
    """A claim_id that is said to be fresh claims more without looking; the repeat gets all that it holds."""
    await kit.enqueue(4)
    request = kit.request(2)
    first = (await kit.store.reserve(request)).tasks
    await kit.store.reserve(replace(request, fresh=True))
    held = (await kit.store.reserve(request)).tasks
    expect_true("the first two are among them", {task.task_id for task in first} <= {task.task_id for task in held})
    expect("held", len(held), 4)


@group.shared
async def the_map_survives(kit: Kit) -> None:
    """The map is there after a reopening."""
    new = await _next(kit.store)
    await kit.reopen()
    expect("map", await kit.store.partition_map(), new)


@group.case
async def enqueue_now_by_an_old_map_records_nothing(kit: Kit) -> None:
    """A try in the caller's thread that was routed by an older map says none, and has done nothing."""
    part = kit.store.partitions()[0]
    task = kit.new_task()
    old = part.map_version
    await _next(part)
    part.map_version = old
    expect("answer", part.enqueue_now([task]), None)
    expect("task", await part.get([task.task_id]), [None])
