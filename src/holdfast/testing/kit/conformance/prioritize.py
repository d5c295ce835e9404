"""Prioritize: a waiting task gets another priority, and the place in its queue that goes with it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import State
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import Kit, ack, give_up, retry

group = Group("prioritize")


async def _order(kit: Kit, number: int) -> list[str]:
    return [task.task_id for task in await kit.reserve(number)]


@group.case
async def ready_task_moves_forward(kit: Kit) -> None:
    """A ready task with a higher priority goes before those that it stood behind, once."""
    first, second, third = await kit.enqueue(3)
    verdict = await kit.apply(lifecycle.prioritize(third, 5))
    expect("verdict", verdict, Verdict(True, state=State.READY))
    expect("order", await _order(kit, 5), [third, first, second])


@group.case
async def ready_task_moves_back(kit: Kit) -> None:
    """A ready task with a lower priority goes after those that it stood in front of."""
    first, second, third = await kit.enqueue(3, priority=5)
    await kit.apply(lifecycle.prioritize(first, -5))
    expect("order", await _order(kit, 5), [second, third, first])


@group.case
async def only_the_priority_changes(kit: Kit) -> None:
    """The record differs in its priority only, and the worker is told the new one."""
    [task_id] = await kit.enqueue(headers={"a": "b"}, request_id="order-42")
    before = await kit.record(task_id)
    kit.clock.advance(10)
    await kit.apply(lifecycle.prioritize(task_id, -100))
    expect("record", await kit.record(task_id), replace(before, priority=-100))
    expect("claimed", (await kit.reserve_one()).priority, -100)


@group.case
async def scheduled_task_takes_it_along(kit: Kit) -> None:
    """A delayed task keeps its time, and has its new place when that has come."""
    [delayed] = await kit.enqueue(delay_ms=100)
    [ready] = await kit.enqueue()
    verdict = await kit.apply(lifecycle.prioritize(delayed, 1))
    expect("verdict", verdict, Verdict(True, state=State.SCHEDULED))
    expect("tasks before its time", await _order(kit, 5), [ready])
    later = await kit.enqueue()
    kit.clock.advance(100)
    expect("promoted", (await kit.promote()).count, 1)
    expect("order", await _order(kit, 5), [delayed, *later])


@group.case
async def pending_retry_takes_it_along(kit: Kit) -> None:
    """A task that waits for its next attempt keeps its time, and has its new place then."""
    claim = await kit.claim()
    await kit.apply(retry(claim, 100))
    verdict = await kit.apply(lifecycle.prioritize(claim.task_id, 1))
    expect("verdict", verdict, Verdict(True, state=State.RETRY_PENDING))
    later = await kit.enqueue()
    kit.clock.advance(100)
    await kit.promote()
    expect("order", await _order(kit, 5), [claim.task_id, *later])


@group.case
async def running_task_is_left_alone(kit: Kit) -> None:
    """A task that a worker holds is refused, and nothing of it changes."""
    claim = await kit.claim()
    before = await kit.record(claim.task_id)
    verdict = await kit.apply(lifecycle.prioritize(claim.task_id, 5))
    expect("verdict", verdict, Verdict(False, reason="wrong_state", state=State.CLAIMED))
    expect("record", await kit.record(claim.task_id), before)
    expect("ack", (await kit.apply(ack(claim))).applied, True)


@group.case
async def finished_task_is_left_alone(kit: Kit) -> None:
    """A task that has ended is refused, and stays where it is."""
    done, dead = await kit.claim(), await kit.claim()
    await kit.store.apply([ack(done), give_up(dead)])
    [cancelled] = await kit.enqueue()
    await kit.apply(lifecycle.cancel(cancelled))
    states = {done.task_id: State.SUCCEEDED, dead.task_id: State.DEAD_LETTERED, cancelled: State.CANCELLED}
    for task_id, state in states.items():
        verdict = await kit.apply(lifecycle.prioritize(task_id, 5))
        expect(f"verdict on one that {state}", verdict, Verdict(False, reason="wrong_state", state=state))
        expect("priority", (await kit.record(task_id)).priority, 0)
    expect("tasks", await kit.reserve(5), [])


@group.case
async def unknown_task_has_no_priority(kit: Kit) -> None:
    """An id that no task has is answered as unknown."""
    unknown = kit.new_task().task_id
    expect("verdict", await kit.apply(lifecycle.prioritize(unknown, 5)), Verdict(False, reason="unknown"))


@group.case
async def equals_stand_by_their_arrival(kit: Kit) -> None:
    """Tasks that get the same priority, one after the other, keep the order in which they came."""
    ids = []
    for _ in range(3):
        ids += await kit.enqueue()
        kit.clock.advance(1)
    for task_id in (ids[2], ids[0], ids[1]):
        await kit.apply(lifecycle.prioritize(task_id, 3))
    expect("order", await _order(kit, 5), ids)


@group.case
async def waiting_counts_from_before(kit: Kit) -> None:
    """What a task has waited counts as much after the change as before, and the way back is open."""
    [old] = await kit.enqueue()
    kit.clock.advance(AGED_STEP_MS + 10)
    [urgent] = await kit.enqueue(priority=1)
    [late] = await kit.enqueue(priority=1, queue="other")
    await kit.apply(lifecycle.prioritize(old, -1))
    await kit.apply(lifecycle.prioritize(old, 0))
    expect("order", await _order(kit, 5), [old, urgent])
    [old] = await kit.enqueue(queue="other")
    kit.clock.advance(AGED_STEP_MS // 2)
    expect("order", [task.task_id for task in await kit.reserve(5, queues=("other",))], [late, old])


@group.case
async def repeat_is_harmless(kit: Kit) -> None:
    """The same change again is applied again, and makes no second place in the queue."""
    first, second = await kit.enqueue(2)
    for _ in range(3):
        expect("verdict", await kit.apply(lifecycle.prioritize(second, 2)), Verdict(True, state=State.READY))
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 2)
    expect("order", await _order(kit, 5), [second, first])


@group.case
async def it_lasts(kit: Kit) -> None:
    """A task that is released, or replayed as a dead letter, still has its new priority."""
    task_id = await kit.dead_letter()
    await kit.apply(lifecycle.replay(task_id))
    await kit.apply(lifecycle.prioritize(task_id, 7))
    claim = await kit.reserve_one()
    await kit.apply(lifecycle.release(claim.task_id, claim.token))
    others = await kit.enqueue(2)
    expect("released", (await kit.reserve_one()).task_id, task_id)
    expect("others", await _order(kit, 5), others)
    expect("priority", (await kit.record(task_id)).priority, 7)


@group.case
async def repeated_enqueue_does_not_undo_it(kit: Kit) -> None:
    """The same task sent again is known, and keeps the priority that it was given since."""
    task = kit.new_task()
    await kit.add(task)
    await kit.apply(lifecycle.prioritize(task.task_id, 5))
    answer = await kit.add(task)
    expect("answer", (answer.created, answer.conflict), (False, None))
    expect("priority", (await kit.record(task.task_id)).priority, 5)


@group.case
async def age_of_the_oldest_is_untouched(kit: Kit) -> None:
    """How long the oldest ready task has been waiting does not depend on its priority."""
    [task_id] = await kit.enqueue()
    kit.clock.advance(700)
    await kit.apply(lifecycle.prioritize(task_id, 50))
    expect("up", (await kit.counts()).oldest_ready_ms, 700)
    await kit.apply(lifecycle.prioritize(task_id, -50))
    expect("down", (await kit.counts()).oldest_ready_ms, 700)


@group.case
async def cancelled_afterwards_never_runs(kit: Kit) -> None:
    """A task that was moved and is cancelled then leaves nothing behind in the queue."""
    [task_id] = await kit.enqueue()
    await kit.apply(lifecycle.prioritize(task_id, 5))
    await kit.apply(lifecycle.cancel(task_id))
    expect("tasks", await kit.reserve(5), [])
