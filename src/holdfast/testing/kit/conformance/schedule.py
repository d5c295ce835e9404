"""Schedule: due by the store's clock, never early."""

from __future__ import annotations

from holdfast.core.task import State
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.stores.contract import Promoted
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import Kit, retry

group = Group("schedule")


@group.case
async def delayed_task_waits(kit: Kit) -> None:
    """A delayed task is scheduled for its delay from now, and not handed out."""
    [task_id] = await kit.enqueue(delay_ms=1_000)
    record = await kit.record(task_id)
    expect("state", record.state, State.SCHEDULED)
    expect("run_at_ms", record.run_at_ms, kit.clock.now_ms() + 1_000)
    expect("tasks", await kit.reserve(), [])


@group.case
async def run_at_is_compared_with_the_stores_clock(kit: Kit) -> None:
    """A task with a time to come is scheduled for exactly that time; `delay_ms` is ignored."""
    due_ms = kit.clock.now_ms() + 777
    [task_id] = await kit.enqueue(run_at_ms=due_ms, delay_ms=5)
    record = await kit.record(task_id)
    expect("state and time", (record.state, record.run_at_ms), (State.SCHEDULED, due_ms))


@group.case
async def run_at_that_has_come_is_ready(kit: Kit) -> None:
    """A task whose time has come already is ready at once."""
    [now] = await kit.enqueue(run_at_ms=kit.clock.now_ms())
    [past] = await kit.enqueue(run_at_ms=kit.clock.now_ms() - 5_000)
    expect("states", [await kit.state(now), await kit.state(past)], [State.READY] * 2)


@group.case
async def never_early(kit: Kit) -> None:
    """A delayed task is promoted at its millisecond, not one before."""
    [task_id] = await kit.enqueue(delay_ms=1_000)
    kit.clock.advance(999)
    expect("a millisecond early", await kit.promote(), Promoted(0, 1))
    expect("state", await kit.state(task_id), State.SCHEDULED)
    kit.clock.advance(1)
    expect("at the millisecond", await kit.promote(), Promoted(1, None))
    expect("tasks", [task.task_id for task in await kit.reserve()], [task_id])


@group.case
async def next_due_counts_delays_and_retries(kit: Kit) -> None:
    """The answer tells how long until the next delayed task or retry is due."""
    claim = await kit.claim()
    await kit.enqueue(delay_ms=9_000)
    await kit.apply(retry(claim, 4_000))
    expect("retry first", await kit.promote(), Promoted(0, 4_000))
    kit.clock.advance(4_000)
    expect("then the delayed one", await kit.promote(), Promoted(1, 5_000))


@group.case
async def limited_and_oldest_first(kit: Kit) -> None:
    """A promotion moves at most `limit` tasks, those due longest first, and says that more are due."""
    last = await kit.enqueue(delay_ms=300)
    first = await kit.enqueue(delay_ms=100)
    second = await kit.enqueue(delay_ms=200)
    kit.clock.advance(1_000)
    answer = await kit.store.promote(await kit.leader_epoch(), 2)
    expect("answer", answer, Promoted(2, 0))
    expect("tasks", [task.task_id for task in await kit.reserve(3)], first + second)
    expect("state of the last", await kit.state(last[0]), State.SCHEDULED)


@group.case
async def promoting_again_changes_nothing(kit: Kit) -> None:
    """A promotion sent twice promotes each task once, and the task keeps its due time."""
    [task_id] = await kit.enqueue(delay_ms=100)
    due_ms = kit.clock.now_ms() + 100
    kit.clock.advance(150)
    expect("first", (await kit.promote()).count, 1)
    expect("second", (await kit.promote()).count, 0)
    expect("run_at_ms", (await kit.record(task_id)).run_at_ms, due_ms)
    expect("deliveries", len(await kit.reserve(5)), 1)


@group.case
async def old_epoch_promotes_nothing(kit: Kit) -> None:
    """A promotion with the epoch of a former leader is refused with `StaleEpoch`."""
    [task_id] = await kit.enqueue(delay_ms=100)
    old = await kit.leader_epoch()
    current = await kit.new_leader_epoch()
    kit.clock.advance(100)
    for epoch in (old, current + 1):
        try:
            await kit.store.promote(epoch)
        except StaleEpoch:
            continue
        raise AssertionError(f"epoch {epoch} is refused while {current} is the leader's")
    expect("state", await kit.state(task_id), State.SCHEDULED)
    expect("current epoch", (await kit.store.promote(current)).count, 1)


@group.case
async def paused_queue_is_promoted(kit: Kit) -> None:
    """A pause holds back the handing out, not the promotion."""
    [task_id] = await kit.enqueue(delay_ms=100)
    await documents.pause(kit.store, "default", paused=True)
    kit.clock.advance(100)
    await kit.promote()
    expect("state", await kit.state(task_id), State.READY)
