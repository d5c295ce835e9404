"""Leases that expire: found when they have, taken only if it is still so, the old token dead from then on."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import ExpiredClaim, Hold, State
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true, only
from holdfast.testing.kit.kit import LEASE_MS, POLICY, Kit, ack

group = Group("lease")


@group.case
async def found_when_it_has_expired(kit: Kit) -> None:
    """A claim is expired at the millisecond its lease ends, not before, with what a decision needs."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS - 1)
    expect("a millisecond early", await kit.expired(), [])
    kit.clock.advance(1)
    lost = ExpiredClaim(claim.task_id, claim.token, 1, POLICY, "worker-1")
    expect("at the millisecond", await kit.expired(), [lost])
    expect("state after looking", await kit.state(claim.task_id), State.CLAIMED)


@group.case
async def oldest_first_and_limited(kit: Kit) -> None:
    """Expired claims come oldest first, at most as many as asked for."""
    claims = []
    for _ in range(3):
        claims.append(await kit.claim())
        kit.clock.advance(10)
    kit.clock.advance(LEASE_MS)
    found = [lost.task_id for lost in await kit.expired(2)]
    expect("expired", found, [claim.task_id for claim in claims[:2]])


@group.case
async def expired_claim_goes_back(kit: Kit) -> None:
    """An expired claim is ready again, its attempt used up and its end recorded."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS)
    expect("verdicts", await kit.requeue_expired(), [Verdict(True, state=State.READY)])
    record = await kit.record(claim.task_id)
    expect("state", (record.state, record.attempt, record.deliveries), (State.READY, 1, 1))
    expect("outcome", [entry.outcome for entry in record.history], ["lease_expired"])
    again = await kit.reserve_one()
    expect("attempt", again.attempt, 2)
    expect_true("the token is a new one", again.token != claim.token)


@group.case
async def requeue_repeated_is_the_same_answer(kit: Kit) -> None:
    """The same requeue sent again after a lost reply is a success, and takes no new claim away."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS)
    epoch = await kit.leader_epoch()
    change = lifecycle.expire_lease(claim.task_id, claim.token, attempt=1, policy=POLICY, epoch=epoch)
    await kit.apply(change)
    new = await kit.reserve_one()
    expect("again", await kit.apply(change), Verdict(True, repeated=True, state=State.CLAIMED))
    expect("the new holder's ack", (await kit.apply(ack(new))).applied, True)


@group.case
async def last_attempt_becomes_a_dead_letter(kit: Kit) -> None:
    """A claim that expires on the last attempt is a dead letter with reason `worker_lost`."""
    claim = await kit.claim(policy=RunPolicy(max_attempts=1))
    kit.clock.advance(LEASE_MS)
    expect("verdicts", await kit.requeue_expired(), [Verdict(True, state=State.DEAD_LETTERED)])
    expect("reason", (await kit.record(claim.task_id)).reason, "worker_lost")


@group.case
async def extended_in_between_is_not_taken(kit: Kit) -> None:
    """A claim that was extended after it was found expired is left to its holder."""
    claim = await kit.claim()
    epoch = await kit.leader_epoch()
    kit.clock.advance(LEASE_MS)
    lost = only("expired claims", await kit.expired())
    await kit.store.extend([Hold(claim.task_id, claim.token)], LEASE_MS)
    change = lifecycle.expire_lease(lost.task_id, lost.token, attempt=lost.attempt, policy=lost.policy, epoch=epoch)
    expect("verdict", await kit.apply(change), Verdict(False, reason="not_expired", state=State.CLAIMED))
    expect("ack", (await kit.apply(ack(claim))).applied, True)


@group.case
async def settled_in_between_is_not_taken(kit: Kit) -> None:
    """A claim that was settled after it was found expired stays settled."""
    claim = await kit.claim()
    epoch = await kit.leader_epoch()
    kit.clock.advance(LEASE_MS)
    lost = only("expired claims", await kit.expired())
    await kit.apply(ack(claim))
    change = lifecycle.expire_lease(lost.task_id, lost.token, attempt=lost.attempt, policy=lost.policy, epoch=epoch)
    expect("verdict", await kit.apply(change), Verdict(False, reason="stale_claim", state=State.SUCCEEDED))


@group.case
async def old_epoch_takes_nothing(kit: Kit) -> None:
    """A requeue with the epoch of a former leader is refused; the current one's goes through."""
    claim = await kit.claim()
    old = await kit.leader_epoch()
    current = await kit.new_leader_epoch()
    kit.clock.advance(LEASE_MS)
    change = lifecycle.expire_lease(claim.task_id, claim.token, attempt=1, policy=POLICY, epoch=old)
    expect("old epoch", await kit.apply(change), Verdict(False, reason="stale_epoch", state=State.CLAIMED))
    change = lifecycle.expire_lease(claim.task_id, claim.token, attempt=1, policy=POLICY, epoch=current)
    expect("current epoch", await kit.apply(change), Verdict(True, state=State.READY))


@group.case
async def settled_claims_do_not_expire(kit: Kit) -> None:
    """Nothing is found expired that is not claimed."""
    claim = await kit.claim()
    await kit.apply(ack(claim))
    kit.clock.advance(LEASE_MS * 10)
    expect("expired", await kit.expired(), [])
