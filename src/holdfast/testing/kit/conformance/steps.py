"""Steps: what a level of priority is worth in a queue, from a little waiting to more than any waiting."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.priority import AGED_STEP_MS, STRICT_STEP_MS
from holdfast.core.task import Claimed, NewTask, State
from holdfast.stores import documents
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import LEASE_MS, Kit, give_up, retry

group = Group("steps")

_MONTH_MS = 30 * 86_400_000


async def _order(kit: Kit, number: int, queue: str = "default") -> list[str]:
    return [task.task_id for task in await kit.reserve(number, queues=(queue,))]


async def _old_and_urgent(kit: Kit, queue: str) -> tuple[str, str]:
    """A task that has waited for ten steps, and one of the next higher priority."""
    [old] = await kit.enqueue(queue=queue, priority=1)
    kit.clock.advance(10 * AGED_STEP_MS)
    [urgent] = await kit.enqueue(queue=queue, priority=2)
    return old, urgent


@group.case
async def strict_goes_by_priority_alone(kit: Kit) -> None:
    """In a strict queue the higher priority goes first, however long the lower one has waited."""
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    low = await kit.enqueue(priority=-1)
    plain = await kit.enqueue()
    kit.clock.advance(_MONTH_MS)
    high = await kit.enqueue(priority=1)
    highest = await kit.enqueue(priority=100)
    expect("order", await _order(kit, 5), highest + high + plain + low)


@group.case
async def strict_keeps_the_order_of_arrival(kit: Kit) -> None:
    """In a strict queue tasks of one priority go in the order in which they came."""
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    ids = []
    for _ in range(3):
        ids += await kit.enqueue(2, priority=100)
        kit.clock.advance(1)
    expect("order", await _order(kit, 9), ids)


@group.case
async def step_is_what_a_level_is_worth(kit: Kit) -> None:
    """A task that has waited longer than the step for each level goes first; with less it goes second."""
    await documents.set_step(kit.store, "default", 1_000)
    for waited_ms, old_first in ((2_001, True), (1_999, False)):
        old = await kit.enqueue()
        kit.clock.advance(waited_ms)
        urgent = await kit.enqueue(priority=2)
        wanted = old + urgent if old_first else urgent + old
        expect(f"order after {waited_ms} ms", await _order(kit, 2), wanted)


@group.case
async def aged_lets_every_task_have_a_turn(kit: Kit) -> None:
    """While urgent tasks keep coming as fast as they are served, one that is not urgent gets its turn."""
    await documents.set_step(kit.store, "default", 1_000)
    served = await _rounds_until_served(kit)
    expect_true(f"served within 4 levels of 1,000 ms, which are 8 rounds; it took {served}", served in range(1, 11))


@group.case
async def strict_lets_the_urgent_have_every_turn(kit: Kit) -> None:
    """While urgent tasks keep coming as fast as they are served, a strict queue serves nothing else."""
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    expect("rounds until it was served", await _rounds_until_served(kit), None)


async def _rounds_until_served(kit: Kit) -> int | None:
    """How many half seconds a plain task waits behind a stream of tasks of priority 4; None for more than 30."""
    [plain] = await kit.enqueue()
    await kit.enqueue(2, priority=4)
    for number in range(30):
        claim = await kit.reserve_one()
        if claim.task_id == plain:
            return number
        kit.clock.advance(500)
        await kit.enqueue(priority=4)
    return None


@group.case
async def waiting_tasks_are_ranked_again(kit: Kit) -> None:
    """A new step holds for the tasks that wait already, and so does the default step when it is set again."""
    for step_ms, queue in ((AGED_STEP_MS, "as-it-was"), (STRICT_STEP_MS, "strict"), (1_000, "short")):
        old, urgent = await _old_and_urgent(kit, queue)
        await documents.set_step(kit.store, queue, step_ms)
        wanted = [urgent, old] if step_ms == STRICT_STEP_MS else [old, urgent]
        expect(f"order with {step_ms}", await _order(kit, 5, queue), wanted)
    old, urgent = await _old_and_urgent(kit, "there-and-back")
    for step_ms in (STRICT_STEP_MS, AGED_STEP_MS):
        await documents.set_step(kit.store, "there-and-back", step_ms)
    expect("order after there and back", await _order(kit, 5, "there-and-back"), [old, urgent])


@group.case
async def types_are_ranked_again_each(kit: Kit) -> None:
    """A new step holds for waiting tasks of every type, and across types."""
    [old] = await kit.enqueue(type="kit.old", priority=1)
    kit.clock.advance(10 * AGED_STEP_MS)
    [urgent] = await kit.enqueue(type="kit.urgent", priority=2)
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    expect("order", await _order(kit, 5), [urgent, old])


@group.case
async def other_queues_keep_their_step(kit: Kit) -> None:
    """A step is that of one queue."""
    old, urgent = await _old_and_urgent(kit, "other")
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    expect("order", await _order(kit, 5, "other"), [old, urgent])
    expect("step", (await kit.counts("other")).step_ms, AGED_STEP_MS)


@group.case
async def tasks_that_come_back_take_the_new_step(kit: Kit) -> None:
    """Released, lost, retried, snoozed or replayed after the change: a task takes the place of the new step."""
    for name, comes_back in _WAYS_BACK.items():
        [old] = await kit.enqueue(queue=name, priority=1)
        kit.clock.advance(10 * AGED_STEP_MS)
        await kit.enqueue(queue=name, priority=2, type="kit.urgent")
        urgent = await kit.reserve_one(queues=(name,), types=frozenset({"kit.urgent"}))
        await documents.set_step(kit.store, name, STRICT_STEP_MS)
        await comes_back(kit, urgent)
        expect(f"order, {name}", await _order(kit, 5, name), [urgent.task_id, old])


async def _released(kit: Kit, claim: Claimed) -> None:
    await kit.apply(lifecycle.release(claim.task_id, claim.token))


async def _lost(kit: Kit, claim: Claimed) -> None:
    del claim
    kit.clock.advance(LEASE_MS)
    await kit.requeue_expired()


async def _retried(kit: Kit, claim: Claimed) -> None:
    await kit.apply(retry(claim, 100))
    kit.clock.advance(100)
    await kit.promote()


async def _snoozed(kit: Kit, claim: Claimed) -> None:
    await kit.apply(lifecycle.snooze(claim.task_id, claim.token, 100))
    kit.clock.advance(100)
    await kit.promote()


async def _replayed(kit: Kit, claim: Claimed) -> None:
    await kit.store.apply([give_up(claim), lifecycle.replay(claim.task_id)])


_WAYS_BACK = {"released": _released, "lost": _lost, "retried": _retried, "snoozed": _snoozed, "replayed": _replayed}


@group.case
async def scheduled_tasks_take_the_new_step(kit: Kit) -> None:
    """A task that was scheduled before the change has the place of the new step when it is due."""
    [old] = await kit.enqueue(priority=1)
    [urgent] = await kit.enqueue(priority=2, delay_ms=10 * AGED_STEP_MS)
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    kit.clock.advance(10 * AGED_STEP_MS)
    await kit.promote()
    expect("order", await _order(kit, 5), [urgent, old])


@group.case
async def prioritized_task_takes_the_step_of_its_queue(kit: Kit) -> None:
    """A changed priority is worth what it is worth in its queue."""
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    [old] = await kit.enqueue(priority=1)
    kit.clock.advance(_MONTH_MS)
    [urgent] = await kit.enqueue()
    await kit.apply(lifecycle.prioritize(urgent, 2))
    expect("order", await _order(kit, 5), [urgent, old])


@group.case
async def counts_tell_the_step(kit: Kit) -> None:
    """A queue is listed with its step, also without tasks; with the default step it is listed for its tasks only."""
    await documents.set_step(kit.store, "empty", STRICT_STEP_MS)
    await kit.enqueue()
    steps = [(entry.queue, entry.step_ms) for entry in await kit.store.counts()]
    expect("steps", steps, [("default", AGED_STEP_MS), ("empty", STRICT_STEP_MS)])
    await documents.set_step(kit.store, "default", 5_000)
    expect("another", (await kit.counts()).step_ms, 5_000)
    for queue in ("default", "empty"):
        await documents.set_step(kit.store, queue, AGED_STEP_MS)
    steps = [(entry.queue, entry.step_ms) for entry in await kit.store.counts()]
    expect("the default again", steps, [("default", AGED_STEP_MS)])


@group.case
async def age_of_the_oldest_is_untouched(kit: Kit) -> None:
    """How long the oldest ready task has been waiting does not depend on the step."""
    await kit.enqueue(priority=50)
    kit.clock.advance(700)
    await kit.enqueue(priority=-50)
    for step_ms in (STRICT_STEP_MS, 1, AGED_STEP_MS):
        await documents.set_step(kit.store, "default", step_ms)
        expect(f"with {step_ms}", (await kit.counts()).oldest_ready_ms, 700)
    await documents.set_step(kit.store, "strict", STRICT_STEP_MS)
    await kit.enqueue(queue="strict", priority=50)
    kit.clock.advance(300)
    expect("enqueued after it", (await kit.counts("strict")).oldest_ready_ms, 300)


@group.case
async def paused_queue_stays_paused(kit: Kit) -> None:
    """A step changes nothing about a pause, nor a pause about a step."""
    await kit.enqueue()
    await documents.pause(kit.store, "default", paused=True)
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    expect("paused", (await kit.counts()).paused, True)
    expect("tasks", await kit.reserve(5), [])
    await documents.pause(kit.store, "default", paused=False)
    expect("step", (await kit.counts()).step_ms, STRICT_STEP_MS)
    expect("tasks after it", len(await kit.reserve(5)), 1)


@group.case
async def no_task_is_lost_or_doubled(kit: Kit) -> None:
    """However often the step changes, each ready task stands in its queue once, and the others are as they were."""
    ids = [task_id for priority in (-5, 0, 5) for task_id in await kit.enqueue(3, priority=priority)]
    [claimed] = await kit.reserve()
    await kit.enqueue(priority=3, delay_ms=100)
    for step_ms in (STRICT_STEP_MS, STRICT_STEP_MS, 1, AGED_STEP_MS):
        await documents.set_step(kit.store, "default", step_ms)
    numbers = {state: number for state, number in (await kit.counts()).states.items() if number}
    expect("states", numbers, {State.READY: 8, State.CLAIMED: 1, State.SCHEDULED: 1})
    expect("tasks", sorted([claimed.task_id, *await _order(kit, 20)]), sorted(ids))


@group.shared
async def other_stores_go_by_it_at_once(kit: Kit) -> None:
    """A step that was set through one opened store holds for tasks that are enqueued through another."""
    other = await kit.another()
    await other.enqueue([kit.new_task(queue="warm-up")])
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    old = kit.new_task(priority=1)
    await other.enqueue([old])
    kit.clock.advance(_MONTH_MS)
    urgent = kit.new_task(priority=2)
    await other.enqueue([urgent])
    expect("order", await _order(kit, 5), [urgent.task_id, old.task_id])


@group.case
async def sync_callers_go_by_it(kit: Kit) -> None:
    """A task that is recorded in the thread of a sync caller, where there is such a way, has the same place."""
    await documents.set_step(kit.store, "default", STRICT_STEP_MS)
    old, urgent = kit.new_task(priority=1), kit.new_task(priority=2)
    await _enqueue_now(kit, old)
    kit.clock.advance(_MONTH_MS)
    await _enqueue_now(kit, urgent)
    expect("order", await _order(kit, 5), [urgent.task_id, old.task_id])


async def _enqueue_now(kit: Kit, task: NewTask) -> None:
    enqueue_now = kit.store.capabilities.enqueue_now
    if enqueue_now is None or enqueue_now([task]) is None:
        await kit.add(task)
