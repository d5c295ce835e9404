"""Extend: the holder keeps its lease, and hears of a lost claim and of a cancellation."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.task import FINAL_STATES, Extension, Hold
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import FOREIGN_TOKEN, LEASE_MS, Kit, ack, every_settlement, give_up

group = Group("extend")


@group.case
async def lease_counts_from_now(kit: Kit) -> None:
    """An extended lease ends `lease_ms` after the call, by the store's clock."""
    claim = await kit.claim()
    kit.clock.advance(10_000)
    expect("answer", await kit.store.extend([Hold(claim.task_id, claim.token)], LEASE_MS), [Extension(True)])
    record = await kit.record(claim.task_id)
    expect("lease", record.lease_expires_at_ms, kit.clock.now_ms() + LEASE_MS)


@group.case
async def lease_is_never_shortened(kit: Kit) -> None:
    """An extension by less than is left leaves the lease as it is."""
    claim = await kit.claim()
    before = (await kit.record(claim.task_id)).lease_expires_at_ms
    await kit.store.extend([Hold(claim.task_id, claim.token)], 10)
    expect("lease", (await kit.record(claim.task_id)).lease_expires_at_ms, before)


@group.case
async def heartbeats_keep_a_long_task(kit: Kit) -> None:
    """A task that is extended in time outlives many leases, as one attempt."""
    claim = await kit.claim()
    for _ in range(5):
        kit.clock.advance(LEASE_MS - 1)
        await kit.requeue_expired()
        await kit.store.extend([Hold(claim.task_id, claim.token)], LEASE_MS)
    expect("ack", (await kit.apply(ack(claim))).applied, True)
    expect("deliveries", (await kit.record(claim.task_id)).deliveries, 1)


@group.case
async def expired_but_not_requeued_is_still_held(kit: Kit) -> None:
    """A claim whose lease has expired but that was not taken away can be extended."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS + 5)
    expect("answer", await kit.store.extend([Hold(claim.task_id, claim.token)], LEASE_MS), [Extension(True)])
    expect("expired claims", await kit.expired(), [])


@group.case
async def stale_token_is_told(kit: Kit) -> None:
    """A lost claim is told with the reason, and the new holder's lease stays."""
    old = await kit.claim()
    kit.clock.advance(LEASE_MS)
    await kit.requeue_expired()
    new = await kit.reserve_one()
    before = await kit.record(old.task_id)
    kit.clock.advance(5)
    answer = await kit.store.extend([Hold(old.task_id, old.token, b"99")], LEASE_MS)
    expect("answer", answer, [Extension(False, reason="stale_claim")])
    expect("record", await kit.record(new.task_id), before)


@group.case
async def finished_and_waiting_tasks_are_not_held(kit: Kit) -> None:
    """The token of a settled claim holds nothing."""
    done, released = await kit.claim(), await kit.claim()
    await kit.apply(ack(done))
    await kit.apply(lifecycle.release(released.task_id, released.token))
    holds = [Hold(done.task_id, done.token), Hold(released.task_id, released.token)]
    answers = await kit.store.extend(holds, LEASE_MS)
    expect("answers", answers, [Extension(False, reason="stale_claim")] * 2)


@group.case
async def unknown_task_is_told(kit: Kit) -> None:
    """A task that is not there is told as unknown."""
    answer = await kit.store.extend([Hold(kit.ids.task_id(), FOREIGN_TOKEN)], LEASE_MS)
    expect("answer", answer, [Extension(False, reason="unknown")])


@group.case
async def mixed_batch_is_answered_in_order(kit: Kit) -> None:
    """Current, stale and unknown claims of one batch get an answer each, in their order."""
    first, second = await kit.claim(), await kit.claim()
    kit.clock.advance(100)
    holds = [
        Hold(first.task_id, FOREIGN_TOKEN),
        Hold(second.task_id, second.token),
        Hold(kit.ids.task_id(), FOREIGN_TOKEN),
        Hold(first.task_id, first.token),
    ]
    answers = await kit.store.extend(holds, LEASE_MS)
    expect("held", [answer.held for answer in answers], [False, True, False, True])
    expect("reasons", [answer.reason for answer in answers], ["stale_claim", "", "unknown", ""])


@group.case
async def cancellation_is_told(kit: Kit) -> None:
    """The holder hears with every extension that the task is to stop."""
    claim = await kit.claim()
    await kit.apply(lifecycle.cancel(claim.task_id))
    hold = Hold(claim.task_id, claim.token)
    for _ in range(2):
        expect("answer", await kit.store.extend([hold], LEASE_MS), [Extension(True, cancel_requested=True)])


@group.case
async def progress_is_recorded(kit: Kit) -> None:
    """Progress is kept as it was sent; an extension without progress leaves it."""
    claim = await kit.claim()
    await kit.store.extend([Hold(claim.task_id, claim.token, b'{"value":0.5}')], LEASE_MS)
    await kit.store.extend([Hold(claim.task_id, claim.token)], LEASE_MS)
    expect("progress", (await kit.record(claim.task_id)).progress, b'{"value":0.5}')


@group.case
async def repeat_is_harmless(kit: Kit) -> None:
    """The same extension sent twice gives the same answer and the same lease."""
    claim = await kit.claim()
    kit.clock.advance(50)
    hold = Hold(claim.task_id, claim.token, b"1")
    first = await kit.store.extend([hold], LEASE_MS)
    before = await kit.record(claim.task_id)
    expect("answer", await kit.store.extend([hold], LEASE_MS), first)
    expect("record", await kit.record(claim.task_id), before)


@group.case
async def progress_ends_with_its_run(kit: Kit) -> None:
    """A task that waits for another run has no progress; one that has ended keeps that of its last run."""
    for name, change in every_settlement(await kit.claim()).items():
        claim = await kit.claim()
        await kit.store.extend([Hold(claim.task_id, claim.token, b'{"done":1}')], LEASE_MS)
        verdict = await kit.apply(replace(change, task_id=claim.task_id, token=claim.token))
        kept = b'{"done":1}' if verdict.state in FINAL_STATES else None
        expect(f"progress after {name}", (await kit.record(claim.task_id)).progress, kept)
        await kit.apply(lifecycle.cancel(claim.task_id))
    claim = await kit.claim()
    await kit.store.extend([Hold(claim.task_id, claim.token, b'{"done":1}')], LEASE_MS)
    await kit.apply(give_up(claim))
    await kit.apply(lifecycle.replay(claim.task_id))
    expect("progress after a replay", (await kit.record(claim.task_id)).progress, None)


@group.case
async def check_only_gives_the_same_answers(kit: Kit) -> None:
    """A look at claims tells current, cancelled, lost and unknown ones apart as an extension does."""
    held, cancelled, done = await kit.claim(), await kit.claim(), await kit.claim()
    await kit.store.apply([lifecycle.cancel(cancelled.task_id), ack(done)])
    holds = [Hold(claim.task_id, claim.token) for claim in (held, cancelled, done)]
    holds += [Hold(held.task_id, FOREIGN_TOKEN), Hold(kit.ids.task_id(), FOREIGN_TOKEN)]
    looked = await kit.store.extend(holds, LEASE_MS, check_only=True)
    expect("held", [answer.held for answer in looked], [True, True, False, False, False])
    expect("answers of an extension", await kit.store.extend(holds, LEASE_MS), looked)
    expect("no claims", await kit.store.extend([], LEASE_MS, check_only=True), [])


@group.case
async def check_only_writes_nothing(kit: Kit) -> None:
    """A look at a claim changes neither its lease nor its progress, also when the lease has expired."""
    claim = await kit.claim()
    await kit.store.extend([Hold(claim.task_id, claim.token, b"1")], LEASE_MS)
    kit.clock.advance(LEASE_MS)
    before = await kit.record(claim.task_id)
    hold = Hold(claim.task_id, claim.token, b"99")
    expect("answer", await kit.store.extend([hold], LEASE_MS, check_only=True), [Extension(True)])
    expect("record", await kit.record(claim.task_id), before)
    expect("expired claims", [lost.task_id for lost in await kit.expired()], [claim.task_id])
