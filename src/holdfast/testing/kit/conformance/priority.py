"""Order: by rank, which is the time of becoming ready less what the priority is worth."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.priority import AGED_STEP_MS
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import Kit

group = Group("priority")


@group.case
async def first_come_first_served(kit: Kit) -> None:
    """Tasks of one priority are handed out in the order in which they came."""
    ids = []
    for _ in range(4):
        ids += await kit.enqueue()
        kit.clock.advance(1)
    expect("order", [task.task_id for task in await kit.reserve(4)], ids)


@group.case
async def first_come_within_a_batch(kit: Kit) -> None:
    """Tasks of one batch, which share a millisecond, keep the order of the batch."""
    ids = await kit.enqueue(50)
    taken = [task.task_id for _ in range(5) for task in await kit.reserve(10)]
    expect("order", taken, ids)


@group.case
async def higher_priority_first(kit: Kit) -> None:
    """Of tasks that came together, the higher priority goes first."""
    low = await kit.enqueue(priority=-5)
    plain = await kit.enqueue()
    high = await kit.enqueue(priority=5)
    expect("order", [task.task_id for task in await kit.reserve(3)], high + plain + low)


@group.case
async def waiting_makes_up_for_priority(kit: Kit) -> None:
    """A task that has waited longer than the other's priority is worth goes first: nothing starves."""
    old = await kit.enqueue()
    kit.clock.advance(2 * AGED_STEP_MS + 1)
    urgent = await kit.enqueue(priority=2)
    expect("order", [task.task_id for task in await kit.reserve(2)], old + urgent)


@group.case
async def priority_is_worth_its_step(kit: Kit) -> None:
    """A task that has waited less than the other's priority is worth goes second."""
    old = await kit.enqueue()
    kit.clock.advance(2 * AGED_STEP_MS - 1)
    urgent = await kit.enqueue(priority=2)
    expect("order", [task.task_id for task in await kit.reserve(2)], urgent + old)


@group.case
async def released_task_keeps_its_place(kit: Kit) -> None:
    """A task that is released goes before those that came after it."""
    first = await kit.claim()
    kit.clock.advance(10)
    later = await kit.enqueue(2)
    await kit.apply(lifecycle.release(first.task_id, first.token))
    expect("order", [task.task_id for task in await kit.reserve(3)], [first.task_id, *later])


@group.case
async def replayed_task_queues_up_anew(kit: Kit) -> None:
    """A replayed task goes after those that were ready before the replay."""
    dead = await kit.dead_letter()
    kit.clock.advance(10)
    waiting = await kit.enqueue(2)
    kit.clock.advance(10)
    await kit.apply(lifecycle.replay(dead))
    expect("order", [task.task_id for task in await kit.reserve(3)], [*waiting, dead])


@group.case
async def promoted_task_ranks_by_its_due_time(kit: Kit) -> None:
    """A delayed task stands in the queue as of the time it was due, not of its promotion or its enqueue."""
    delayed = await kit.enqueue(delay_ms=100)
    before = await kit.enqueue()
    kit.clock.advance(200)
    after = await kit.enqueue()
    await kit.promote()
    expect("order", [task.task_id for task in await kit.reserve(3)], before + delayed + after)
