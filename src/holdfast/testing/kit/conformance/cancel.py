"""Cancel: a waiting task never runs, a running one is told, and never runs again."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.task import State
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import LEASE_MS, Kit, ack, every_settlement, give_up, retry

group = Group("cancel")


@group.case
async def ready_task_never_runs(kit: Kit) -> None:
    """A ready task that is cancelled is not handed out."""
    [task_id] = await kit.enqueue()
    verdict = await kit.apply(lifecycle.cancel(task_id, "changed my mind"))
    expect("verdict", verdict, Verdict(True, state=State.CANCELLED))
    expect("tasks", await kit.reserve(5), [])
    record = await kit.record(task_id)
    expect("state and reason", (record.state, record.reason), (State.CANCELLED, "changed my mind"))
    expect("finished_at_ms", record.finished_at_ms, kit.clock.now_ms())


@group.case
async def scheduled_task_never_runs(kit: Kit) -> None:
    """A scheduled task that is cancelled is not promoted."""
    [task_id] = await kit.enqueue(delay_ms=100)
    await kit.apply(lifecycle.cancel(task_id))
    kit.clock.advance(100)
    expect("promoted", (await kit.promote()).count, 0)
    expect("state", await kit.state(task_id), State.CANCELLED)


@group.case
async def pending_retry_never_runs(kit: Kit) -> None:
    """A task that waits for its retry is cancelled at once."""
    claim = await kit.claim()
    await kit.apply(retry(claim, 100))
    await kit.apply(lifecycle.cancel(claim.task_id))
    kit.clock.advance(100)
    expect("promoted", (await kit.promote()).count, 0)
    expect("state", await kit.state(claim.task_id), State.CANCELLED)


@group.case
async def running_task_is_told(kit: Kit) -> None:
    """A running task stays claimed, with the request recorded."""
    claim = await kit.claim()
    verdict = await kit.apply(lifecycle.cancel(claim.task_id, "why not"))
    expect("verdict", verdict, Verdict(True, state=State.CLAIMED))
    record = await kit.record(claim.task_id)
    expect("record", (record.state, record.cancel_requested), (State.CLAIMED, True))


@group.case
async def running_task_ends_as_cancelled(kit: Kit) -> None:
    """Whatever would run the task again ends it as cancelled, once a cancellation was accepted."""
    for name in ("retry", "snooze", "release", "lose"):
        claim = await kit.claim(queue=name)
        await kit.apply(lifecycle.cancel(claim.task_id, "why not"))
        verdict = await kit.apply(every_settlement(claim)[name])
        expect(name, verdict, Verdict(True, state=State.CANCELLED))
        record = await kit.record(claim.task_id)
        expect(f"record after {name}", (record.state, record.reason), (State.CANCELLED, "why not"))
        kit.clock.advance(LEASE_MS)
        await kit.promote()
        expect(f"tasks after {name}", await kit.reserve(queues=(name,)), [])


@group.case
async def expired_claim_ends_as_cancelled(kit: Kit) -> None:
    """A task that was to be cancelled and whose lease runs out does not run again."""
    claim = await kit.claim()
    await kit.apply(lifecycle.cancel(claim.task_id))
    kit.clock.advance(LEASE_MS)
    expect("verdicts", await kit.requeue_expired(), [Verdict(True, state=State.CANCELLED)])


@group.case
async def running_task_may_still_end_otherwise(kit: Kit) -> None:
    """A run that finishes before it hears of the cancellation keeps its success or its failure."""
    done, failed = await kit.claim(), await kit.claim()
    await kit.store.apply([lifecycle.cancel(done.task_id), lifecycle.cancel(failed.task_id)])
    expect("ack", await kit.apply(ack(done)), Verdict(True, state=State.SUCCEEDED))
    expect("give up", await kit.apply(give_up(failed)), Verdict(True, state=State.DEAD_LETTERED))
    expect("reason of the success", (await kit.record(done.task_id)).reason, None)


@group.case
async def stopped_run_is_cancelled(kit: Kit) -> None:
    """A told run that stops is cancelled."""
    claim = await kit.claim()
    await kit.apply(lifecycle.cancel(claim.task_id, "by the user"))
    await kit.apply(lifecycle.stop(claim.task_id, claim.token, "by the user"))
    record = await kit.record(claim.task_id)
    expect("state and reason", (record.state, record.reason), (State.CANCELLED, "by the user"))


@group.case
async def repeat_is_the_same_answer(kit: Kit) -> None:
    """A task that is cancelled twice is a success twice."""
    [task_id] = await kit.enqueue()
    await kit.apply(lifecycle.cancel(task_id, "first"))
    kit.clock.advance(5)
    before = await kit.record(task_id)
    again = await kit.apply(lifecycle.cancel(task_id, "second"))
    expect("verdict", again, Verdict(True, repeated=True, state=State.CANCELLED))
    expect("record", await kit.record(task_id), before)


@group.case
async def finished_tasks_are_refused(kit: Kit) -> None:
    """A task that has succeeded or is a dead letter cannot be cancelled."""
    claim = await kit.claim()
    await kit.apply(ack(claim))
    verdict = await kit.apply(lifecycle.cancel(claim.task_id))
    expect("succeeded", verdict, Verdict(False, reason="wrong_state", state=State.SUCCEEDED))
    verdict = await kit.apply(lifecycle.cancel(await kit.dead_letter()))
    expect("dead letter", verdict, Verdict(False, reason="wrong_state", state=State.DEAD_LETTERED))
