"""Reschedule: a task that is ready or delayed runs at another time."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import Kit, ack, give_up, retry

group = Group("reschedule")


@group.case
async def delayed_task_runs_now(kit: Kit) -> None:
    """A delayed task without a delay is due at once, behind what is ready already."""
    [delayed] = await kit.enqueue(delay_ms=60_000)
    kit.clock.advance(10)
    [ready] = await kit.enqueue()
    kit.clock.advance(10)
    verdict = await kit.apply(lifecycle.reschedule(delayed, 0))
    expect("verdict", verdict, Verdict(True, state=State.SCHEDULED))
    expect("promoted", (await kit.promote()).count, 1)
    expect("order", [task.task_id for task in await kit.reserve(5)], [ready, delayed])


@group.case
async def delayed_task_runs_later(kit: Kit) -> None:
    """A delayed task with a longer delay is not due at its first time, and due at its new one."""
    [task_id] = await kit.enqueue(delay_ms=100)
    kit.clock.advance(50)
    await kit.apply(lifecycle.reschedule(task_id, 200))
    kit.clock.advance(199)
    expect("promoted before its time", (await kit.promote()).count, 0)
    kit.clock.advance(1)
    expect("promoted at its time", (await kit.promote()).count, 1)
    expect("claimed", (await kit.reserve_one()).task_id, task_id)


@group.case
async def ready_task_waits(kit: Kit) -> None:
    """A ready task with a delay is handed out after it, and only once."""
    first, second = await kit.enqueue(2, priority=5)
    verdict = await kit.apply(lifecycle.reschedule(first, 100))
    expect("verdict", verdict, Verdict(True, state=State.SCHEDULED))
    expect("states", (await kit.counts()).states, {State.READY: 1, State.SCHEDULED: 1})
    expect("before its time", [task.task_id for task in await kit.reserve(5)], [second])
    kit.clock.advance(100)
    await kit.promote()
    expect("at its time", [task.task_id for task in await kit.reserve(5)], [first])


@group.case
async def pending_retry_runs_now(kit: Kit) -> None:
    """A task that waits for its next attempt runs at once, as that attempt."""
    claim = await kit.claim()
    await kit.apply(retry(claim, 60_000))
    verdict = await kit.apply(lifecycle.reschedule(claim.task_id, 0))
    expect("verdict", verdict, Verdict(True, state=State.RETRY_PENDING))
    await kit.promote()
    again = await kit.reserve_one()
    expect("task", (again.task_id, again.attempt), (claim.task_id, 2))
    expect("history", [attempt.outcome for attempt in (await kit.record(claim.task_id)).history], ["failed"])


@group.case
async def only_the_time_changes(kit: Kit) -> None:
    """The record differs in its time only, and keeps its place for tasks of its priority."""
    [task_id] = await kit.enqueue(delay_ms=100, headers={"a": "b"}, request_id="order-42", priority=3)
    before = await kit.record(task_id)
    kit.clock.advance(10)
    await kit.apply(lifecycle.reschedule(task_id, 500))
    expect("record", await kit.record(task_id), replace(before, run_at_ms=before.run_at_ms + 410))


@group.case
async def running_or_finished_task_is_left_alone(kit: Kit) -> None:
    """A task that a worker holds, or that has ended, is refused, and nothing of it changes."""
    done, dead, running = await kit.claim(), await kit.claim(), await kit.claim()
    await kit.store.apply([ack(done), give_up(dead)])
    states = {
        done.task_id: State.SUCCEEDED,
        dead.task_id: State.DEAD_LETTERED,
        running.task_id: State.CLAIMED,
    }
    for task_id, state in states.items():
        before = await kit.record(task_id)
        verdict = await kit.apply(lifecycle.reschedule(task_id, 0))
        expect(f"verdict on one that {state}", verdict, Verdict(False, reason="wrong_state", state=state))
        expect("record", await kit.record(task_id), before)
    expect("ack", (await kit.apply(ack(running))).applied, True)


@group.case
async def unknown_task_has_no_time(kit: Kit) -> None:
    """An id that no task has is answered as unknown."""
    unknown = kit.new_task().task_id
    expect("verdict", await kit.apply(lifecycle.reschedule(unknown, 0)), Verdict(False, reason="unknown"))


@group.case
async def repeat_is_harmless(kit: Kit) -> None:
    """The same change again is applied again, and makes no second place among the delayed tasks."""
    [task_id] = await kit.enqueue(delay_ms=100)
    for _ in range(3):
        expect("verdict", (await kit.apply(lifecycle.reschedule(task_id, 0))).applied, True)
    expect("states", (await kit.counts()).states, {State.SCHEDULED: 1})
    expect("promoted", (await kit.promote()).count, 1)
    expect("tasks", [task.task_id for task in await kit.reserve(5)], [task_id])


@group.case
async def deadline_to_start_stays(kit: Kit) -> None:
    """A task that must be started in time must still be, wherever it was moved to."""
    [task_id] = await kit.enqueue(policy=RunPolicy(expires_ms=1_000))
    await kit.apply(lifecycle.reschedule(task_id, 60_000))
    kit.clock.advance(1_001)
    expect("not started in time", list((await kit.store.expired()).unstarted), [task_id])
    expect("expired", (await kit.apply(lifecycle.expire(task_id, "too late"))).state, State.CANCELLED)


@group.case
async def cancelled_afterwards_never_runs(kit: Kit) -> None:
    """A task that was moved and is cancelled then leaves nothing behind."""
    moved, delayed = (await kit.enqueue())[0], (await kit.enqueue(delay_ms=100))[0]
    for task_id in (moved, delayed):
        await kit.apply(lifecycle.reschedule(task_id, 50))
        await kit.apply(lifecycle.cancel(task_id))
    kit.clock.advance(200)
    expect("promoted", (await kit.promote()).count, 0)
    expect("tasks", await kit.reserve(5), [])
