"""Prune: finished tasks go after their time or when there are too many, unfinished ones never."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Claimed, NewTask, State
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.stores.contract import Retention
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import KEEP_NOTHING, Kit, ack, give_up, retry

group = Group("prune")


async def _succeeded(kit: Kit, number: int = 1, **fields: Any) -> list[str]:
    ids = await kit.enqueue(number, **fields)
    await kit.store.apply([ack(claim) for claim in await kit.reserve(number)])
    return ids


@group.case
async def each_state_has_its_own_age(kit: Kit) -> None:
    """A task is kept for the age of its state and then deleted: results for one time, dead letters for another."""
    policy = RunPolicy(result_ttl_ms=1_000, dead_letter_ttl_ms=2_000)
    [done] = await _succeeded(kit, policy=policy)
    failed = await kit.dead_letter(policy=replace(policy, dead_letter=False))
    [cancelled] = await kit.enqueue(policy=policy)
    await kit.apply(lifecycle.cancel(cancelled))
    dead = await kit.dead_letter(policy=policy)
    ids = [done, failed, cancelled, dead]
    for left in ([True] * 4, [False, False, False, True], [False] * 4):
        kit.clock.advance(999)
        await kit.prune(Retention())
        known = [task is not None for task in await kit.store.get(ids)]
        expect(f"known at {kit.clock.now_ms()}", known, left)
        kit.clock.advance(2)


@group.case
async def each_task_has_its_own_age(kit: Kit) -> None:
    """How long a task is kept is its own affair: neither its neighbours nor the pruning process change it."""
    day = 86_400_000
    ages = {0: 1, 1_000: 1_001, day: day + 1, 30 * day: 30 * day + 1}
    short, second, usual, long = [
        (await _succeeded(kit, policy=RunPolicy(result_ttl_ms=age)))[0] for age in (0, 1_000, day, 30 * day)
    ]
    dead = await kit.dead_letter(policy=RunPolicy(result_ttl_ms=0, dead_letter_ttl_ms=365 * day))
    ids = [short, second, usual, long, dead]
    start_ms = kit.clock.now_ms()
    for gone, age in enumerate(ages.values(), 1):
        kit.clock.advance(start_ms + age - kit.clock.now_ms())
        await kit.prune(Retention())
        known = [task is not None for task in await kit.store.get(ids)]
        expect(f"known after {age} ms", known, [place >= gone for place in range(5)])


@group.case
async def replayed_task_is_kept_for_its_time_again(kit: Kit) -> None:
    """A dead letter that was replayed and has succeeded is kept from its new end on."""
    dead = await kit.dead_letter(policy=RunPolicy(result_ttl_ms=1_000, dead_letter_ttl_ms=5_000))
    kit.clock.advance(4_500)
    await kit.apply(lifecycle.replay(dead))
    await kit.apply(ack(await kit.reserve_one()))
    kit.clock.advance(999)
    expect("pruned before its time", await kit.prune(Retention()), 0)
    kit.clock.advance(2)
    expect("pruned after it", await kit.prune(Retention()), 1)


@group.case
async def unfinished_tasks_are_never_touched(kit: Kit) -> None:
    """Ready, claimed, scheduled and waiting tasks stay, however old and however many."""
    await kit.enqueue(3)
    claims = await kit.reserve(2)
    await kit.apply(retry(claims[0], 999_999_999))
    [scheduled] = await kit.enqueue(delay_ms=999_999_999)
    before = await kit.counts()
    kit.clock.advance(100_000_000)
    expect("pruned", await kit.prune(KEEP_NOTHING), 0)
    expect("states", (await kit.counts()).states, before.states)
    expect("state", await kit.state(scheduled), State.SCHEDULED)


@group.case
async def number_of_finished_tasks_is_limited(kit: Kit) -> None:
    """Of more finished tasks than `keep`, those with the least time left go first."""
    ids = []
    for _ in range(5):
        ids += await _succeeded(kit)
        kit.clock.advance(1)
    await kit.prune(Retention(keep=2))
    known = [task.task_id for task in await kit.store.get(ids) if task]
    expect("kept", known, ids[3:])


@group.case
async def limited_by_call(kit: Kit) -> None:
    """One call deletes at most `limit` tasks of all states together and says how many; further calls the rest."""
    policy = RunPolicy(result_ttl_ms=1_000, dead_letter_ttl_ms=1_000)
    ids = await _succeeded(kit, 3, policy=policy)
    ids += [await kit.dead_letter(policy=policy) for _ in range(3)]
    ids += [await kit.dead_letter(policy=replace(policy, dead_letter=False)) for _ in range(3)]
    cancelled = await kit.enqueue(2, policy=policy)
    await kit.store.apply([lifecycle.cancel(task_id) for task_id in cancelled])
    kit.clock.advance(2_000)
    epoch = await kit.leader_epoch()
    numbers = []
    for _ in range(4):
        numbers.append(await kit.store.prune(epoch, Retention(), 4))
        left = sum(task is not None for task in await kit.store.get(ids + cancelled))
        expect("left", left, 11 - sum(numbers))
    expect("pruned by each call", numbers, [4, 4, 3, 0])


@group.case
async def surplus_is_limited_by_call(kit: Kit) -> None:
    """Tasks that are too many go by the same limit, over all states together."""
    ids = await _succeeded(kit, 3)
    ids += [await kit.dead_letter() for _ in range(3)]
    epoch = await kit.leader_epoch()
    numbers = []
    for _ in range(3):
        numbers.append(await kit.store.prune(epoch, Retention(keep=1), 3))
        left = sum(task is not None for task in await kit.store.get(ids))
        expect("left", left, 6 - sum(numbers))
    expect("pruned by each call", numbers, [3, 1, 0])


@group.case
async def pruned_with_all_that_belongs_to_it(kit: Kit) -> None:
    """A pruned task is unknown to every method, and leaves nothing to the next task of its ids."""
    task = kit.new_task(request_id="r-1")
    claim = await _failed_twice(kit, task)
    await kit.apply(ack(claim))
    kit.clock.advance(10)
    await kit.prune(KEEP_NOTHING)
    await _expect_no_trace(kit, task, claim)


@group.case
async def discarded_with_all_that_belongs_to_it(kit: Kit) -> None:
    """A discarded task is unknown to every method, and leaves nothing but its record to the next task of its ids."""
    task = kit.new_task(request_id="r-1")
    claim = await _failed_twice(kit, task)
    await kit.store.apply([give_up(claim), lifecycle.discard(task.task_id, "why")])
    await _expect_no_trace(kit, task, claim)


async def _failed_twice(kit: Kit, task: NewTask) -> Claimed:
    """The third claim of this task, after two failed attempts."""
    await kit.add(task)
    for _ in range(2):
        await kit.apply(retry(await kit.reserve_one(), 0))
        await kit.promote()
    return await kit.reserve_one()


async def _expect_no_trace(kit: Kit, task: NewTask, claim: Claimed) -> None:
    expect("task", await kit.store.get([task.task_id]), [None])
    expect("ack", (await kit.apply(ack(claim))).reason, "unknown")
    expect("retry", (await kit.apply(retry(claim))).reason, "unknown")
    expect("counts", sum((await kit.counts()).states.values()), 0)
    for again in (kit.new_task(request_id="r-1"), task):
        expect("created", (await kit.add(again)).created, True)
        expect("history", (await kit.record(again.task_id)).history, ())
        new = await kit.reserve_one()
        expect("ack of the old claim", (await kit.apply(ack(claim))).applied, False)
        await kit.apply(retry(new, 0))
        expect("history", [line.delivery for line in (await kit.record(again.task_id)).history], [1])
        await kit.store.apply([lifecycle.cancel(again.task_id)])
        kit.clock.advance(10)
        await kit.prune(KEEP_NOTHING)


@group.case
async def old_epoch_prunes_nothing(kit: Kit) -> None:
    """A pruning with the epoch of a former leader is refused with `StaleEpoch`."""
    [done] = await _succeeded(kit)
    old = await kit.leader_epoch()
    await kit.new_leader_epoch()
    kit.clock.advance(10)
    try:
        await kit.store.prune(old, KEEP_NOTHING)
    except StaleEpoch:
        expect("state", await kit.state(done), State.SUCCEEDED)
        return
    raise AssertionError("the old epoch is refused")


@group.case
async def discard_records_have_their_own_age(kit: Kit) -> None:
    """Records of discarded tasks are kept for their own time."""
    dead = await kit.dead_letter()
    await kit.apply(lifecycle.discard(dead, "why"))
    await kit.prune(Retention(discards_ms=1_000))
    expect("records", len(await documents.discards(kit.store)), 1)
    kit.clock.advance(1_001)
    await kit.prune(Retention(discards_ms=1_000))
    expect("records", await documents.discards(kit.store), [])


@group.case
async def replayed_task_is_not_pruned(kit: Kit) -> None:
    """A dead letter that was replayed is unfinished again."""
    dead = await kit.dead_letter()
    await kit.apply(lifecycle.replay(dead))
    kit.clock.advance(10)
    expect("pruned", await kit.prune(KEEP_NOTHING), 0)
    expect_true("the task is there", await kit.state(dead) is State.READY)
