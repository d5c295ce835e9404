"""A clock that is set forward an hour and then back: nothing early, nothing lost, all well again within a lease."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.task import Hold, State
from holdfast.stores.contract import WorkerRecord
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import LEASE_MS, Kit, ack, retry

group = Group("clock")

HOUR_MS = 3_600_000
TTL_MS = 10_000
#: The leader looks at everything this often.
LOOK_MS = 1_000


@group.case
async def delayed_task_waits_by_the_clock_that_is_right(kit: Kit) -> None:
    """A store that has seen the future promotes nothing before its time once the clock is set back."""
    kit.clock.step(HOUR_MS)
    await kit.promote()
    kit.clock.step(-HOUR_MS)
    [delayed] = await kit.enqueue(delay_ms=600_000)
    expect("promoted at once", (await kit.promote()).count, 0)
    kit.clock.advance(599_999)
    expect("promoted a millisecond early", (await kit.promote()).count, 0)
    kit.clock.advance(1)
    expect("promoted in time", (await kit.promote()).count, 1)
    expect("state", await kit.state(delayed), State.READY)


@group.case
async def retry_waits_no_longer_than_its_delay(kit: Kit) -> None:
    """A task that fails after the clock was set back is due again after its delay, not an hour later."""
    kit.clock.step(HOUR_MS)
    claim = await kit.claim()
    kit.clock.step(-HOUR_MS)
    await kit.apply(retry(claim, 5_000))
    kit.clock.advance(5_000)
    expect("promoted", (await kit.promote()).count, 1)


@group.case
async def claim_of_the_future_expires_within_its_lease(kit: Kit) -> None:
    """A claim made before the clock was set back, and lost, is found a lease after the leader has looked."""
    kit.clock.step(HOUR_MS)
    claim = await kit.claim()
    await kit.promote()
    kit.clock.step(-HOUR_MS)
    kit.clock.advance(LOOK_MS)
    await kit.promote()
    expect("expired at once", await kit.expired(), [])
    kit.clock.advance(LEASE_MS)
    expect("expired", [lost.task_id for lost in await kit.expired()], [claim.task_id])


@group.case
async def long_leases_hide_no_claim_of_the_future(kit: Kit) -> None:
    """A claim made before the clock was set back, and lost, is found however many claims have longer leases."""
    await kit.enqueue(151)
    await kit.store.reserve(replace(kit.request(150), lease_ms=24 * HOUR_MS))
    kit.clock.step(HOUR_MS)
    [claim] = await kit.reserve(1)
    await kit.promote()
    await kit.expired()
    kit.clock.step(-HOUR_MS)
    kit.clock.advance(LOOK_MS)
    await kit.promote()
    expect("expired at once", await kit.expired(), [])
    kit.clock.advance(LEASE_MS)
    expect("expired", [lost.task_id for lost in await kit.expired()], [claim.task_id])


@group.case
async def claim_that_is_extended_after_the_step_expires_within_its_lease(kit: Kit) -> None:
    """A heartbeat after the clock was set back makes the lease end by the clock that is right."""
    kit.clock.step(HOUR_MS)
    claim = await kit.claim()
    await kit.promote()
    kit.clock.step(-HOUR_MS)
    kit.clock.advance(LOOK_MS)
    await kit.promote()
    [extension] = await kit.store.extend([Hold(claim.task_id, claim.token)], LEASE_MS)
    expect("held", extension.held, True)
    kit.clock.advance(LEASE_MS - 1)
    expect("expired too early", await kit.expired(), [])
    kit.clock.advance(1)
    expect("expired", [lost.task_id for lost in await kit.expired()], [claim.task_id])


@group.case
async def claim_of_the_future_is_settled(kit: Kit) -> None:
    """A claim made before the clock was set back is a claim like any other."""
    kit.clock.step(HOUR_MS)
    claim = await kit.claim()
    kit.clock.step(-HOUR_MS)
    expect("expired", await kit.expired(), [])
    expect("ack", (await kit.apply(ack(claim))).applied, True)


@group.case
async def leadership_of_the_future_ends_within_its_time(kit: Kit) -> None:
    """What was held before the clock was set back is free its own time after another has asked, not an hour later."""
    kit.clock.step(HOUR_MS)
    first = await kit.store.lead("d", "a", TTL_MS)
    kit.clock.step(-HOUR_MS)
    other = await kit.store.lead("d", "b", TTL_MS)
    expect("held by", (other.owner, other.held, other.epoch), ("a", False, first.epoch))
    expect_true(f"{other.expires_in_ms} ms is not longer than its own time", other.expires_in_ms <= TTL_MS)
    kit.clock.advance(TTL_MS + 1)
    second = await kit.store.lead("d", "b", TTL_MS)
    expect("held", second.held, True)
    expect_true("the epoch has grown", second.epoch > first.epoch)


@group.case
async def leader_stays_when_the_clock_is_set_back(kit: Kit) -> None:
    """A holder that comes back after the clock was set back keeps its epoch, for its own time from then on."""
    kit.clock.step(HOUR_MS)
    first = await kit.store.lead("d", "a", TTL_MS)
    kit.clock.step(-HOUR_MS)
    again = await kit.store.lead("d", "a", TTL_MS)
    expect("kept", (again.held, again.epoch), (True, first.epoch))
    kit.clock.advance(TTL_MS + 1)
    expect("free after its time", (await kit.store.lead("d", "b", TTL_MS)).held, True)


@group.case
async def worker_of_the_future_is_not_alive_for_an_hour(kit: Kit) -> None:
    """A worker that was heard of before the clock was set back, and not since, is not called alive."""
    record = WorkerRecord(
        worker_id="w", host="h", pid=1, version="1", queues=("q",), types=(), processes=1, concurrency=1, running=0
    )
    kit.clock.step(HOUR_MS)
    await kit.store.announce(record, TTL_MS)
    kit.clock.step(-HOUR_MS)
    kit.clock.advance(TTL_MS + 1)
    expect("alive", [worker.alive for worker in await kit.store.workers()], [False])
    await kit.store.announce(record, TTL_MS)
    expect("alive again", [worker.alive for worker in await kit.store.workers()], [True])
