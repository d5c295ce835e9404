"""Dead letters: put back with fresh attempts, or deleted with a record."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State
from holdfast.stores import documents
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true, only
from holdfast.testing.kit.kit import FAILURE, Kit, ack, retry

group = Group("dead_letters")


@group.case
async def replay_gives_fresh_attempts(kit: Kit) -> None:
    """A replayed dead letter is ready with no attempt used, and has all its attempts again."""
    claim = await kit.claim(policy=RunPolicy(max_attempts=1))
    await kit.apply(retry(claim))
    verdict = await kit.apply(lifecycle.replay(claim.task_id))
    expect("verdict", verdict, Verdict(True, state=State.READY))
    record = await kit.record(claim.task_id)
    expect("attempt, reason, end", (record.attempt, record.reason, record.finished_at_ms), (0, None, None))
    expect("run_at_ms", record.run_at_ms, kit.clock.now_ms())
    expect("next attempt", [task.attempt for task in await kit.reserve()], [1])


@group.case
async def replay_keeps_the_history(kit: Kit) -> None:
    """The attempts before the replay stay in the history, and deliveries go on counting."""
    dead = await kit.dead_letter()
    before = (await kit.record(dead)).history
    await kit.apply(lifecycle.replay(dead))
    claim = await kit.reserve_one()
    await kit.apply(ack(claim))
    record = await kit.record(dead)
    expect("first line of history", record.history[:1], before)
    expect("deliveries", [entry.delivery for entry in record.history], [1, 2])
    expect("state", record.state, State.SUCCEEDED)


@group.case
async def old_token_is_dead_after_replay(kit: Kit) -> None:
    """The claim that failed cannot settle the replayed task."""
    claim = await kit.claim(policy=RunPolicy(max_attempts=1))
    await kit.apply(retry(claim))
    await kit.apply(lifecycle.replay(claim.task_id))
    expect("ack", (await kit.apply(ack(claim))).reason, "stale_claim")


@group.case
async def failed_tasks_can_be_replayed(kit: Kit) -> None:
    """A failed task without a dead letter can be replayed as well."""
    task_id = await kit.dead_letter(policy=RunPolicy(dead_letter=False))
    expect("state", await kit.state(task_id), State.FAILED)
    expect("verdict", await kit.apply(lifecycle.replay(task_id)), Verdict(True, state=State.READY))


@group.case
async def replay_is_refused_elsewhere(kit: Kit) -> None:
    """Waiting, running, succeeded and cancelled tasks are not replayed or discarded."""
    [ready], [scheduled] = await kit.enqueue(queue="other"), await kit.enqueue(delay_ms=5)
    claimed, done = await kit.claim(), await kit.claim()
    await kit.apply(ack(done))
    [cancelled] = await kit.enqueue(queue="other")
    await kit.apply(lifecycle.cancel(cancelled))
    for task_id in (ready, scheduled, claimed.task_id, done.task_id, cancelled):
        state = await kit.state(task_id)
        refused = Verdict(False, reason="wrong_state", state=state)
        expect(f"replay of {state}", await kit.apply(lifecycle.replay(task_id)), refused)
        expect(f"discard of {state}", await kit.apply(lifecycle.discard(task_id, "no")), refused)
    expect("records", await documents.discards(kit.store), [])


@group.case
async def replay_repeated_runs_once(kit: Kit) -> None:
    """A replay that is sent twice gives one new life."""
    dead = await kit.dead_letter()
    await kit.apply(lifecycle.replay(dead))
    again = await kit.apply(lifecycle.replay(dead))
    expect("verdict", again, Verdict(False, reason="wrong_state", state=State.READY))
    expect("tasks", len(await kit.reserve(5)), 1)


@group.case
async def discard_deletes_with_a_record(kit: Kit) -> None:
    """A discarded task is gone, and the record has its payload, the reason and the time."""
    dead = await kit.dead_letter(payload=b'{"n":7}', type="kit.sad")
    kit.clock.advance(50)
    verdict = await kit.apply(lifecycle.discard(dead, "by ann: obsolete"))
    expect("verdict", verdict, Verdict(True))
    expect("task", await kit.store.get([dead]), [None])
    record = only("records", await documents.discards(kit.store))
    expect("record", (record.task_id, record.type, record.queue), (dead, "kit.sad", "default"))
    expect("payload and reason", (record.payload, record.reason), (b'{"n":7}', "by ann: obsolete"))
    expect("time", record.discarded_at_ms, kit.clock.now_ms())
    expect_true("the record names the error", FAILURE.type in record.error or FAILURE.message in record.error)


@group.case
async def discard_repeated_records_once(kit: Kit) -> None:
    """A discard that is sent twice leaves one record."""
    dead = await kit.dead_letter()
    await kit.apply(lifecycle.discard(dead, "why"))
    expect("again", await kit.apply(lifecycle.discard(dead, "why")), Verdict(False, reason="unknown"))
    expect("records", len(await documents.discards(kit.store)), 1)


@group.case
async def discards_come_newest_first(kit: Kit) -> None:
    """The records come newest first, at most as many as asked for."""
    dead = [await kit.dead_letter() for _ in range(3)]
    for task_id in dead:
        await kit.apply(lifecycle.discard(task_id, "why"))
        kit.clock.advance(1)
    expect("records", [record.task_id for record in await documents.discards(kit.store, 2)], [dead[2], dead[1]])


@group.case
async def discarded_task_leaves_the_counts(kit: Kit) -> None:
    """A queue whose last task was discarded is not listed any more."""
    dead = await kit.dead_letter()
    await kit.apply(lifecycle.discard(dead, "why"))
    expect("tasks counted", sum((await kit.counts()).states.values()), 0)
