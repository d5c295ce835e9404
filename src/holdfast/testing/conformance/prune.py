"""Prune: finished tasks go after their time or when there are too many, unfinished ones never."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.policy import RunPolicy
from holdfast.core.task import State
from holdfast.errors import StaleEpoch
from holdfast.stores.contract import Retention
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect, expect_true
from holdfast.testing.kit import Kit, ack, retry

group = Group("prune")

NOW = Retention(succeeded_ms=0, failed_ms=0, cancelled_ms=0, dead_lettered_ms=0, keep=0, discards_ms=0)


async def _succeeded(kit: Kit, number: int = 1) -> list[str]:
    ids = await kit.enqueue(number)
    await kit.store.apply([ack(claim) for claim in await kit.reserve(number)])
    return ids


@group.case
async def each_state_has_its_own_age(kit: Kit) -> None:
    """A finished task is kept for the age of its state and then deleted."""
    ages = Retention(succeeded_ms=1_000, failed_ms=2_000, cancelled_ms=3_000, dead_lettered_ms=4_000)
    [done] = await _succeeded(kit)
    failed = await kit.dead_letter(policy=RunPolicy(dead_letter=False))
    [cancelled] = await kit.enqueue()
    await kit.apply(lifecycle.cancel(cancelled))
    dead = await kit.dead_letter()
    ids = [done, failed, cancelled, dead]
    for gone in range(4):
        kit.clock.advance(999)
        await kit.prune(ages)
        known = [task is not None for task in await kit.store.get(ids)]
        expect(f"known a millisecond before age {gone + 1}", known, [place >= gone for place in range(4)])
        kit.clock.advance(1)
    kit.clock.advance(1)
    await kit.prune(ages)
    expect("known after all ages", await kit.store.get(ids), [None] * 4)


@group.case
async def unfinished_tasks_are_never_touched(kit: Kit) -> None:
    """Ready, claimed, scheduled and waiting tasks stay, however old and however many."""
    await kit.enqueue(3)
    claims = await kit.reserve(2)
    await kit.apply(retry(claims[0], 999_999_999))
    [scheduled] = await kit.enqueue(delay_ms=999_999_999)
    before = await kit.counts()
    kit.clock.advance(100_000_000)
    expect("pruned", await kit.prune(NOW), 0)
    expect("states", (await kit.counts()).states, before.states)
    expect("state", await kit.state(scheduled), State.SCHEDULED)


@group.case
async def at_most_so_many_are_kept(kit: Kit) -> None:
    """Of more finished tasks than `keep`, the oldest go first."""
    ids = []
    for _ in range(5):
        ids += await _succeeded(kit)
        kit.clock.advance(1)
    await kit.prune(Retention(keep=2))
    known = [task.task_id for task in await kit.store.get(ids) if task]
    expect("kept", known, ids[3:])


@group.case
async def limited_by_call(kit: Kit) -> None:
    """One call deletes at most `limit` tasks and says how many; further calls delete the rest."""
    await _succeeded(kit, 5)
    kit.clock.advance(2_000)
    epoch, retention = await kit.upkeep_epoch(), Retention(succeeded_ms=1_000)
    numbers = [await kit.store.prune(epoch, retention, 2) for _ in range(4)]
    expect("pruned by each call", numbers, [2, 2, 1, 0])


@group.case
async def deleted_with_all_that_belongs_to_it(kit: Kit) -> None:
    """A pruned task is unknown to every method, and its request_id makes a new task."""
    claim = await kit.claim(request_id="r-1")
    await kit.apply(ack(claim))
    kit.clock.advance(10)
    await kit.prune(NOW)
    expect("task", await kit.store.get([claim.task_id]), [None])
    expect("ack", (await kit.apply(ack(claim))).reason, "unknown")
    expect("counts", sum((await kit.counts()).states.values()), 0)
    answer = await kit.add(kit.new_task(request_id="r-1"))
    expect("created", answer.created, True)
    expect("history", (await kit.record(answer.task_id)).history, ())


@group.case
async def old_epoch_prunes_nothing(kit: Kit) -> None:
    """A pruning with the epoch of a former owner is refused with `StaleEpoch`."""
    [done] = await _succeeded(kit)
    old = await kit.upkeep_epoch()
    await kit.new_owner_epoch()
    kit.clock.advance(10)
    try:
        await kit.store.prune(old, NOW)
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
    expect("records", len(await kit.store.discards()), 1)
    kit.clock.advance(1_001)
    await kit.prune(Retention(discards_ms=1_000))
    expect("records", await kit.store.discards(), [])


@group.case
async def replayed_task_is_not_pruned(kit: Kit) -> None:
    """A dead letter that was replayed is unfinished again."""
    dead = await kit.dead_letter()
    await kit.apply(lifecycle.replay(dead))
    kit.clock.advance(10)
    expect("pruned", await kit.prune(NOW), 0)
    expect_true("the task is there", await kit.state(dead) is State.READY)
