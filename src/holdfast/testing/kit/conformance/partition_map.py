"""The partition map: versions one after the other, and no call that was routed by an old one."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec.structs import replace

from holdfast.core.partitions import PartitionMap
from holdfast.core.task import State
from holdfast.errors import StaleMap
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Store
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import Kit, ack, every_minute

group = Group("partition_map")


async def _next(store: Store, queue: str = "hot") -> PartitionMap:
    """The next version of the map, put into the store."""
    return await documents.put_partition_map(store, (await documents.partition_map(store)).with_spread(queue, 1))


async def _refused(what: str, call: Awaitable[object]) -> None:
    try:
        await call
    except StaleMap:
        return
    raise AssertionError(f"{what} is refused")


@group.case
async def next_version_is_kept(kit: Kit) -> None:
    """The next version of the map replaces the one before it."""
    before = await documents.partition_map(kit.store)
    new = before.with_spread("hot", 1)
    expect("answer", await documents.put_partition_map(kit.store, new), new)
    expect("map", await documents.partition_map(kit.store), new)


@group.case
async def same_version_again_is_a_success(kit: Kit) -> None:
    """The same map sent again after a lost reply is a success, and changes nothing."""
    new = await _next(kit.store)
    expect("answer", await documents.put_partition_map(kit.store, new), new)
    expect("map", await documents.partition_map(kit.store), new)


@group.case
async def other_versions_are_refused(kit: Kit) -> None:
    """A map that is not the next version, or another one of the same, is refused with `StaleMap`."""
    old = await documents.partition_map(kit.store)
    current = await _next(kit.store)
    for wrong in (
        old,
        replace(old, version=current.version - 1, spread={"other": 1}),
        replace(current, spread={"other": 1}),
        replace(current, version=current.version + 2),
    ):
        await _refused(
            f"version {wrong.version} after {current.version}", documents.put_partition_map(kit.store, wrong)
        )
    expect("map", await documents.partition_map(kit.store), current)


@group.case
async def one_of_two_changes_wins(kit: Kit) -> None:
    """Of two that replace the same version, the second is refused and told which map is there."""
    part = await kit.partition(0)
    current = await documents.partition_map(part)
    first, second = current.with_spread("first", 1), current.with_spread("second", 1)
    for _ in range(2):
        expect("first", (await part.put(documents.map_write(first, current.version))).applied, True)
    late = await part.put(documents.map_write(second, current.version))
    expect("second", (late.applied, late.reason, documents.map_of(late.document)), (False, "version", first))
    expect("map", await documents.partition_map(part), first)


@group.case
async def copies_catch_up(kit: Kit) -> None:
    """A partition other than the first takes any newer map, since it copies what the first has decided."""
    part = await kit.partition(-1)
    newest = await documents.partition_map(part)
    newest = replace(newest, version=newest.version + 5, partition=1)
    expect("answer", await documents.put_partition_map(part, newest), newest)
    await _refused("an older copy", documents.put_partition_map(part, replace(newest, version=newest.version - 1)))
    expect("map", await documents.partition_map(part), newest)


@group.case
async def old_routing_records_nothing(kit: Kit) -> None:
    """An enqueue that was routed by an older map is refused, and records nothing; by the current one it is taken."""
    part = await kit.partition(0)
    task = kit.new_task()
    old, current = await documents.partition_map(part), await _next(part)
    for version in (0, old.version):
        await _refused(f"an enqueue by map {version}", part.enqueue([task], map_version=version))
    expect("task", await part.get([task.task_id]), [None])
    answers = await part.enqueue([task], map_version=current.version)
    expect("created", [answer.created for answer in answers], [True])


@group.case
async def old_routing_claims_and_settles_nothing(kit: Kit) -> None:
    """A reserve that was routed by an older map is refused with its settlements; by the current one it is served."""
    part = await kit.partition(0)
    old = (await documents.partition_map(part)).version
    await part.enqueue([kit.new_task(), kit.new_task()], map_version=old)
    [claim] = (await part.reserve(kit.request(1, map_version=old))).tasks
    current = await _next(part)
    request = kit.request(1, map_version=old)
    await _refused("a reserve by an old map", part.reserve(request, [ack(claim)]))
    states = [task and task.state for task in await part.get([claim.task_id])]
    expect("state", states, [State.CLAIMED])
    answer = await part.reserve(replace(request, map_version=current.version), [ack(claim)])
    expect("verdicts", [(verdict.applied, verdict.repeated) for verdict in answer.verdicts], [(True, False)])
    expect("tasks", len(answer.tasks), 1)


@group.case
async def old_routing_fires_no_schedule(kit: Kit) -> None:
    """A schedule put with tasks by an older map is refused with them, unless the leader of the partition does it."""
    part = await kit.partition(0)
    task = kit.new_task(request_id="occurrence-1")
    old, current = await documents.partition_map(part), await _next(part)
    schedule = every_minute()
    call = documents.put_schedule(part, "nightly", schedule, 0, [task], map_version=old.version)
    await _refused("an occurrence by an old map", call)
    expect(
        "schedule and task", (await documents.schedule(part, "nightly"), await part.get([task.task_id])), (None, [None])
    )
    epoch = (await part.lead(MAINTENANCE, "leader-1", 10_000)).epoch
    expect("the leader's", await documents.put_schedule(part, "nightly", schedule, 0, [task], epoch), True)
    expect("recorded", [record is not None for record in await part.get([task.task_id])], [True])
    second = documents.schedule_write("nightly", every_minute(version=2), 1, [task], map_version=current.version)
    expect("by the current map", (await part.put(second)).applied, True)
    expect("without tasks", await documents.put_schedule(part, "nightly", None, 2), True)


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
    expect("map", await documents.partition_map(kit.store), new)


@group.case
async def enqueue_now_by_an_old_map_records_nothing(kit: Kit) -> None:
    """A try in the caller's thread that was routed by an older map says none, and has done nothing."""
    part = await kit.partition(0)
    task = kit.new_task()
    old = await documents.partition_map(part)
    await _next(part)
    if part.capabilities.enqueue_now is not None:
        expect("answer", part.capabilities.enqueue_now([task], map_version=old.version), None)
    expect("task", await part.get([task.task_id]), [None])
