"""Settle: only the current token, the same answer for a repeat, a reason for a refusal."""

from __future__ import annotations

import msgspec

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import FOREIGN_TOKEN, LEASE_MS, POLICY, Kit, ack, every_settlement, give_up, retry

group = Group("settle")

#: Where each settlement leads from a first attempt under `POLICY`.
ENDS_IN = {
    "ack": State.SUCCEEDED,
    "retry": State.RETRY_PENDING,
    "give up": State.DEAD_LETTERED,
    "snooze": State.SCHEDULED,
    "release": State.READY,
    "stop": State.CANCELLED,
    "lose": State.READY,
}


@group.case
async def current_token_settles(kit: Kit) -> None:
    """Each settlement with the current token leads to its state."""
    for name, state in ENDS_IN.items():
        claim = await kit.claim(queue=name.replace(" ", "_"))
        expect(name, await kit.apply(every_settlement(claim)[name]), Verdict(True, state=state))
        expect(f"state after {name}", await kit.state(claim.task_id), state)


@group.case
async def repeat_is_the_same_answer(kit: Kit) -> None:
    """Each settlement sent twice with one token is a success twice, and takes effect once."""
    for name, state in ENDS_IN.items():
        claim = await kit.claim(queue=name.replace(" ", "_"))
        change = every_settlement(claim)[name]
        await kit.apply(change)
        before = await kit.record(claim.task_id)
        kit.clock.advance(1)
        expect(f"{name} again", await kit.apply(change), Verdict(True, repeated=True, state=state))
        expect(f"record after {name} again", await kit.record(claim.task_id), before)


@group.case
async def repeat_is_known_after_the_next_claim(kit: Kit) -> None:
    """A settlement repeated while another worker holds the task already is answered as done, and does no harm."""
    for name in ("release", "lose"):
        first = await kit.claim(queue=name)
        change = every_settlement(first)[name]
        await kit.apply(change)
        second = await kit.reserve_one(queues=(name,))
        expect(f"{name} again", await kit.apply(change), Verdict(True, repeated=True, state=State.CLAIMED))
        expect("the new holder's ack", (await kit.apply(ack(second))).applied, True)


@group.case
async def another_settlement_is_refused_after_one(kit: Kit) -> None:
    """Once a claim was settled, any other settlement with its token is stale."""
    claim = await kit.claim()
    changes = every_settlement(claim)
    await kit.apply(changes.pop("ack"))
    for name, change in changes.items():
        expect(name, await kit.apply(change), Verdict(False, reason="stale_claim", state=State.SUCCEEDED))
    expect("state", await kit.state(claim.task_id), State.SUCCEEDED)


@group.case
async def foreign_token_is_refused(kit: Kit) -> None:
    """Each settlement with a token that was never given is stale, and the task runs on."""
    claim = await kit.claim()
    before = await kit.record(claim.task_id)
    for name, change in every_settlement(claim).items():
        foreign = msgspec.structs.replace(change, token=FOREIGN_TOKEN)
        expect(name, await kit.apply(foreign), Verdict(False, reason="stale_claim", state=State.CLAIMED))
    expect("record", await kit.record(claim.task_id), before)


@group.case
async def missing_token_is_refused(kit: Kit) -> None:
    """A settlement without a token never settles, whether the task is claimed or not."""
    claim = await kit.claim()
    bare = msgspec.structs.replace(ack(claim), token=None)
    expect("claimed", await kit.apply(bare), Verdict(False, reason="stale_claim", state=State.CLAIMED))
    [waiting] = await kit.enqueue()
    bare = msgspec.structs.replace(bare, task_id=waiting)
    expect("ready", await kit.apply(bare), Verdict(False, reason="stale_claim", state=State.READY))


@group.case
async def token_of_another_task_is_refused(kit: Kit) -> None:
    """A token counts for its own task only."""
    first, second = await kit.claim(), await kit.claim()
    swapped = msgspec.structs.replace(ack(first), token=second.token)
    expect("verdict", await kit.apply(swapped), Verdict(False, reason="stale_claim", state=State.CLAIMED))


@group.case
async def old_token_is_refused_after_a_new_claim(kit: Kit) -> None:
    """Each settlement with the token of an earlier claim is stale, and the new holder keeps the task."""
    first = await kit.claim()
    await kit.apply(lifecycle.release(first.task_id, first.token))
    second = await kit.reserve_one()
    changes = every_settlement(first)
    del changes["release"]
    for name, change in changes.items():
        expect(name, await kit.apply(change), Verdict(False, reason="stale_claim", state=State.CLAIMED))
    expect("the new holder's ack", (await kit.apply(ack(second))).applied, True)


@group.case
async def unknown_task_is_refused(kit: Kit) -> None:
    """Each change of a task that is not there is answered with `unknown`."""
    claim = msgspec.structs.replace(await kit.claim(), task_id=kit.ids.task_id())
    others = {
        "cancel": lifecycle.cancel(claim.task_id),
        "replay": lifecycle.replay(claim.task_id),
        "discard": lifecycle.discard(claim.task_id, "why"),
    }
    for name, change in {**every_settlement(claim), **others}.items():
        expect(name, await kit.apply(change), Verdict(False, reason="unknown"))


@group.case
async def ack_after_requeue_is_refused(kit: Kit) -> None:
    """A worker that comes back after its lease was taken cannot finish the task, and hears why."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS)
    await kit.requeue_expired()
    refused = Verdict(False, reason="stale_claim", state=State.READY)
    expect("late ack", await kit.apply(ack(claim)), refused)
    await kit.reserve(worker_id="worker-2")
    expect("later ack", (await kit.apply(ack(claim))).reason, "stale_claim")
    expect("state", await kit.state(claim.task_id), State.CLAIMED)


@group.case
async def ack_after_the_lease_but_before_requeue_counts(kit: Kit) -> None:
    """A claim that has run out but was not taken away is still current."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS * 2)
    expect("verdict", await kit.apply(ack(claim)), Verdict(True, state=State.SUCCEEDED))


@group.case
async def result_is_kept_exactly(kit: Kit) -> None:
    """The result's bytes come back as they were sent, large, empty or none."""
    big = b'"' + b"x" * 262_142 + b'"'
    for result in (b'{"a":"\xc3\xa4\\u0000"}', b"", None, big):
        claim = await kit.claim()
        await kit.apply(ack(claim, result))
        expect("result", (await kit.record(claim.task_id)).result, result)


@group.case
async def result_need_not_be_text(kit: Kit) -> None:
    """A store never looks into a result: bytes that are not UTF-8 come back as well."""
    claim = await kit.claim()
    await kit.apply(ack(claim, b"\x00\xff\xfe"))
    expect("result", (await kit.record(claim.task_id)).result, b"\x00\xff\xfe")


@group.case
async def finished_task_is_closed(kit: Kit) -> None:
    """A finished task has its end time, no holder's lease, and cannot be reserved."""
    claim = await kit.claim()
    kit.clock.advance(7)
    await kit.apply(ack(claim))
    record = await kit.record(claim.task_id)
    expect("finished_at_ms", record.finished_at_ms, kit.clock.now_ms())
    expect("lease", record.lease_expires_at_ms, None)
    expect("reason", record.reason, None)
    expect("tasks", await kit.reserve(), [])


@group.case
async def retry_waits_its_delay_by_the_stores_clock(kit: Kit) -> None:
    """A retry is due its delay after the store heard of it, and not reservable before."""
    claim = await kit.claim()
    kit.clock.advance(123)
    await kit.apply(retry(claim, 1_000))
    due_ms = kit.clock.now_ms() + 1_000
    expect("run_at_ms", (await kit.record(claim.task_id)).run_at_ms, due_ms)
    kit.clock.advance(999)
    await kit.promote()
    expect("tasks a millisecond early", await kit.reserve(), [])
    kit.clock.advance(1)
    await kit.promote()
    expect("attempt when due", [task.attempt for task in await kit.reserve()], [2])


@group.case
async def attempts_end_in_the_dead_letters(kit: Kit) -> None:
    """A task that fails every time runs `max_attempts` times and becomes a dead letter with the reason."""
    claim = await kit.claim()
    for attempt in range(1, POLICY.max_attempts + 1):
        expect("attempt", claim.attempt, attempt)
        await kit.apply(retry(claim))
        kit.clock.advance(POLICY.cap_ms)
        await kit.promote()
        claim = next(iter(await kit.reserve()), claim)
    record = await kit.record(claim.task_id)
    expect("state and reason", (record.state, record.reason), (State.DEAD_LETTERED, "max_attempts"))
    expect("attempt and deliveries", (record.attempt, record.deliveries), (3, 3))


@group.case
async def not_retryable_ends_at_once(kit: Kit) -> None:
    """A failure that is not worth a retry dead-letters the first attempt, with the reason."""
    claim = await kit.claim()
    await kit.apply(give_up(claim))
    record = await kit.record(claim.task_id)
    expect("state and reason", (record.state, record.reason), (State.DEAD_LETTERED, "not_retryable"))
    expect("finished_at_ms", record.finished_at_ms, kit.clock.now_ms())


@group.case
async def policy_without_dead_letters_fails(kit: Kit) -> None:
    """A policy that keeps no dead letters ends in `failed`."""
    claim = await kit.claim(policy=RunPolicy(max_attempts=1, dead_letter=False))
    expect("verdict", await kit.apply(retry(claim)), Verdict(True, state=State.FAILED))


@group.case
async def release_uses_up_no_attempt(kit: Kit) -> None:
    """A released task runs with the same attempt number, at once."""
    claim = await kit.claim()
    await kit.apply(lifecycle.release(claim.task_id, claim.token))
    record = await kit.record(claim.task_id)
    expect("attempt and deliveries", (record.attempt, record.deliveries), (0, 1))
    expect("next attempt", [task.attempt for task in await kit.reserve()], [1])


@group.case
async def snooze_uses_up_no_attempt(kit: Kit) -> None:
    """A snoozed task waits its delay and runs with the same attempt number."""
    claim = await kit.claim()
    await kit.apply(lifecycle.snooze(claim.task_id, claim.token, 500))
    record = await kit.record(claim.task_id)
    expect("attempt", record.attempt, 0)
    expect("run_at_ms", record.run_at_ms, kit.clock.now_ms() + 500)
    kit.clock.advance(500)
    await kit.promote()
    expect("next attempt", [task.attempt for task in await kit.reserve()], [1])


@group.case
async def lost_worker_uses_up_an_attempt(kit: Kit) -> None:
    """A lost worker's task is ready at once, and its attempt counts."""
    claim = await kit.claim()
    await kit.apply(every_settlement(claim)["lose"])
    expect("next attempt", [task.attempt for task in await kit.reserve()], [2])


@group.case
async def task_that_kills_workers_ends(kit: Kit) -> None:
    """A task whose worker is lost on its last attempt becomes a dead letter with reason `worker_lost`."""
    claim = await kit.claim(policy=RunPolicy(max_attempts=1))
    await kit.apply(every_settlement(claim)["lose"])
    record = await kit.record(claim.task_id)
    expect("state and reason", (record.state, record.reason), (State.DEAD_LETTERED, "worker_lost"))


@group.case
async def stop_ends_as_cancelled(kit: Kit) -> None:
    """A run that stops itself is cancelled with its reason."""
    claim = await kit.claim()
    await kit.apply(lifecycle.stop(claim.task_id, claim.token, "no longer needed"))
    record = await kit.record(claim.task_id)
    expect("state and reason", (record.state, record.reason), (State.CANCELLED, "no longer needed"))
    expect_true("it has an end time", record.finished_at_ms == kit.clock.now_ms())
