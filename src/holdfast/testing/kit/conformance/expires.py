"""Expires: a task that no worker has begun by its deadline can be cancelled for that, and only such a task."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Claimed, State
from holdfast.stores import documents
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import KEEP_NOTHING, LEASE_MS, Kit, ack, give_up, retry

group = Group("expires")

_REASON = "expired: not begun within 1s"
_LONG_MS = 366 * 86_400_000
_REFUSED_IN = {state: Verdict(False, reason="wrong_state", state=state) for state in State}


def _expiring(expires_ms: int = 1_000) -> RunPolicy:
    return RunPolicy(max_attempts=3, base_ms=1_000, jitter=0.0, expires_ms=expires_ms)


def _back_to(state: State, claim: Claimed) -> Change:
    """An ending of this claim after which the task waits in this state."""
    endings = {
        State.READY: lifecycle.release(claim.task_id, claim.token),
        State.SCHEDULED: lifecycle.snooze(claim.task_id, claim.token, 9_000),
        State.RETRY_PENDING: retry(claim, 9_000),
    }
    return endings[state]


@group.case
async def deadline_runs_by_the_stores_clock(kit: Kit) -> None:
    """A task was not started in time when its time from the creation has passed, not a millisecond before."""
    ids = await kit.enqueue(policy=_expiring())
    kit.clock.advance(999)
    expect("a millisecond early", await kit.unstarted(), [])
    kit.clock.advance(1)
    expect("at the millisecond", await kit.unstarted(), ids)
    expect("policy", (await kit.record(ids[0])).policy.expires_ms, 1_000)


@group.case
async def looking_changes_no_task(kit: Kit) -> None:
    """A caller that asks for the unstarted tasks gets the same answer again, and the tasks still wait."""
    ids = await kit.enqueue(3, policy=_expiring())
    kit.clock.advance(1_000)
    expect("unstarted", await kit.unstarted(), ids)
    expect("unstarted again", await kit.unstarted(), ids)
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 3)


@group.case
async def expired_task_is_cancelled_with_the_reason(kit: Kit) -> None:
    """A task that expires is cancelled, says why, and is never handed out."""
    [task_id] = await kit.enqueue(policy=_expiring())
    kit.clock.advance(1_000)
    expect("verdict", await kit.apply(lifecycle.expire(task_id, _REASON)), Verdict(True, state=State.CANCELLED))
    record = await kit.record(task_id)
    expect("state and reason", (record.state, record.reason), (State.CANCELLED, _REASON))
    expect("finished_at_ms", record.finished_at_ms, kit.clock.now_ms())
    expect("history", record.history, ())
    expect("tasks", await kit.reserve(5), [])
    expect("unstarted", await kit.unstarted(), [])


@group.case
async def scheduled_task_expires(kit: Kit) -> None:
    """A deadline that comes before the time of a delayed task holds: it is cancelled and not promoted."""
    [task_id] = await kit.enqueue(policy=_expiring(), delay_ms=5_000)
    kit.clock.advance(1_000)
    expect("unstarted", await kit.unstarted(), [task_id])
    expect("verdict", await kit.apply(lifecycle.expire(task_id, _REASON)), Verdict(True, state=State.CANCELLED))
    kit.clock.advance(5_000)
    expect("promoted", (await kit.promote()).count, 0)


@group.case
async def promoted_task_expires(kit: Kit) -> None:
    """A delayed task whose time comes before its deadline is found when that has passed too."""
    [task_id] = await kit.enqueue(policy=_expiring(), delay_ms=500)
    kit.clock.advance(500)
    await kit.promote()
    kit.clock.advance(499)
    expect("before the deadline", await kit.unstarted(), [])
    kit.clock.advance(1)
    expect("unstarted", await kit.unstarted(), [task_id])
    expect("verdict", await kit.apply(lifecycle.expire(task_id, _REASON)), Verdict(True, state=State.CANCELLED))
    expect("tasks", await kit.reserve(5), [])


@group.case
async def running_task_does_not_expire(kit: Kit) -> None:
    """A task that a worker holds has begun: it is not found, and is not cancelled."""
    claim = await kit.claim(policy=_expiring())
    kit.clock.advance(2_000)
    expect("unstarted", await kit.unstarted(), [])
    expect("verdict", await kit.apply(lifecycle.expire(claim.task_id, _REASON)), _REFUSED_IN[State.CLAIMED])
    expect("ack", await kit.apply(ack(claim)), Verdict(True, state=State.SUCCEEDED))


@group.case
async def task_that_has_begun_once_does_not_expire(kit: Kit) -> None:
    """Released, snoozed, failed or lost by its worker, a task that has begun has no deadline any more."""
    for state in (State.READY, State.SCHEDULED, State.RETRY_PENDING):
        claim = await kit.claim(policy=_expiring(), queue=state.value)
        await kit.apply(_back_to(state, claim))
        kit.clock.advance(1_000)
        expect(f"unstarted while {state}", await kit.unstarted(), [])
        verdict = await kit.apply(lifecycle.expire(claim.task_id, _REASON))
        expect(f"verdict while {state}", verdict, _REFUSED_IN[state])
        expect("state", await kit.state(claim.task_id), state)


@group.case
async def requeued_task_does_not_expire(kit: Kit) -> None:
    """A task whose worker was lost has begun, and waits for its next run without a deadline."""
    claim = await kit.claim(policy=_expiring())
    kit.clock.advance(LEASE_MS)
    await kit.requeue_expired()
    expect("unstarted", await kit.unstarted(), [])
    expect("verdict", await kit.apply(lifecycle.expire(claim.task_id, _REASON)), _REFUSED_IN[State.READY])


@group.case
async def replayed_dead_letter_does_not_expire(kit: Kit) -> None:
    """A dead letter that is put back has begun once; its old deadline means nothing."""
    dead = await kit.dead_letter(policy=_expiring())
    kit.clock.advance(2_000)
    await kit.apply(lifecycle.replay(dead))
    expect("unstarted", await kit.unstarted(), [])
    expect("verdict", await kit.apply(lifecycle.expire(dead, _REASON)), _REFUSED_IN[State.READY])
    expect("tasks", [task.task_id for task in await kit.reserve()], [dead])


@group.case
async def finished_task_does_not_expire(kit: Kit) -> None:
    """A task that has ended stays as it ended, cancelled ones with their own reason."""
    policy = _expiring()
    done, dead = await kit.claim(policy=policy), await kit.claim(policy=policy)
    await kit.store.apply([ack(done), give_up(dead)])
    [cancelled] = await kit.enqueue(policy=policy)
    await kit.apply(lifecycle.cancel(cancelled, "by the user"))
    kit.clock.advance(1_000)
    expect("unstarted", await kit.unstarted(), [])
    states = {done.task_id: State.SUCCEEDED, dead.task_id: State.DEAD_LETTERED, cancelled: State.CANCELLED}
    for task_id, state in states.items():
        expect(f"verdict on one that {state}", await kit.apply(lifecycle.expire(task_id, _REASON)), _REFUSED_IN[state])
    expect("reason", (await kit.record(cancelled)).reason, "by the user")


@group.case
async def expire_sent_twice_changes_nothing(kit: Kit) -> None:
    """The second of two is refused, and the task keeps its first end."""
    [task_id] = await kit.enqueue(policy=_expiring())
    kit.clock.advance(1_000)
    await kit.apply(lifecycle.expire(task_id, _REASON))
    ended = await kit.record(task_id)
    kit.clock.advance(1_000)
    expect("again", await kit.apply(lifecycle.expire(task_id, "another")), _REFUSED_IN[State.CANCELLED])
    expect("record", await kit.record(task_id), ended)


@group.case
async def old_epoch_expires_nothing(kit: Kit) -> None:
    """A former leader cannot expire tasks; the current one can."""
    [task_id] = await kit.enqueue(policy=_expiring())
    old = await kit.leader_epoch()
    current = await kit.new_leader_epoch()
    kit.clock.advance(1_000)
    verdict = await kit.apply(lifecycle.expire(task_id, _REASON, old))
    expect("old epoch", verdict, Verdict(False, reason="stale_epoch", state=State.READY))
    expect("unstarted", await kit.unstarted(), [task_id])
    verdict = await kit.apply(lifecycle.expire(task_id, _REASON, current))
    expect("current epoch", verdict, Verdict(True, state=State.CANCELLED))


@group.case
async def unknown_task_does_not_expire(kit: Kit) -> None:
    """An id that no task has is answered as unknown."""
    unknown = kit.new_task().task_id
    expect("verdict", await kit.apply(lifecycle.expire(unknown, _REASON)), Verdict(False, reason="unknown"))


@group.case
async def oldest_deadline_first(kit: Kit) -> None:
    """Unstarted tasks come by their deadlines, whatever their priority, and no more than were asked for."""
    late = await kit.enqueue(policy=_expiring(3_000), priority=9)
    early = await kit.enqueue(policy=_expiring(1_000))
    kit.clock.advance(100)
    middle = await kit.enqueue(policy=_expiring(1_500), delay_ms=9_000)
    kit.clock.advance(3_000)
    expect("all", await kit.unstarted(), early + middle + late)
    expect("two", await kit.unstarted(2), early + middle)


@group.case
async def begun_tasks_do_not_stand_in_front(kit: Kit) -> None:
    """However many older deadlines have lost their meaning, an unstarted task behind them is found."""
    await kit.enqueue(5, policy=_expiring(1_000))
    await kit.reserve(5)
    late = await kit.enqueue(3, policy=_expiring(2_000))
    kit.clock.advance(2_000)
    expect("two", await kit.unstarted(2), late[:2])
    expect("all", await kit.unstarted(), late)


@group.case
async def tasks_without_a_deadline_wait_for_ever(kit: Kit) -> None:
    """A task without `expires` waits for as long as it takes."""
    [waiting] = await kit.enqueue()
    await kit.enqueue(delay_ms=2 * _LONG_MS)
    kit.clock.advance(_LONG_MS)
    expect("unstarted", await kit.unstarted(), [])
    expect("state", await kit.state(waiting), State.READY)


@group.case
async def repeated_enqueue_does_not_move_the_deadline(kit: Kit) -> None:
    """The deadline counts from the first recording of a task."""
    task = kit.new_task(policy=_expiring(), request_id="order-42")
    await kit.add(task)
    kit.clock.advance(600)
    await kit.add(task)
    await kit.add(kit.new_task(policy=_expiring(9_000), request_id="order-42"))
    kit.clock.advance(400)
    expect("unstarted", await kit.unstarted(), [task.task_id])


@group.case
async def forgotten_task_leaves_no_deadline(kit: Kit) -> None:
    """Once a task is deleted, its deadline applies to no other."""
    gone = await kit.enqueue(3, policy=_expiring())
    await kit.store.apply([lifecycle.cancel(task_id) for task_id in gone])
    await kit.prune(KEEP_NOTHING)
    await kit.enqueue(3)
    kit.clock.advance(1_000)
    expect("unstarted", await kit.unstarted(), [])


@group.case
async def paused_queue_does_not_stop_the_clock(kit: Kit) -> None:
    """A task of a paused queue misses its deadline like any other."""
    ids = await kit.enqueue(policy=_expiring())
    await documents.pause(kit.store, "default", paused=True)
    kit.clock.advance(1_000)
    expect("unstarted", await kit.unstarted(), ids)


@group.case
async def both_lists_have_the_whole_limit(kit: Kit) -> None:
    """Expired claims and unstarted tasks come in one answer, each up to the limit, the oldest first."""
    claims = [await kit.claim() for _ in range(3)]
    late = [(await kit.enqueue(policy=_expiring(1_000 + n)))[0] for n in range(3)]
    kit.clock.advance(LEASE_MS)
    for limit in (1, 2, 3, 1_000):
        found = await kit.store.expired(limit)
        expect("claims", [claim.task_id for claim in found.claims], [claim.task_id for claim in claims[:limit]])
        expect("unstarted", found.unstarted, late[:limit])
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 3)
