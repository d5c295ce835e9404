"""Reopen: what was answered is there for the next process."""

from __future__ import annotations

import asyncio

from holdfast.core import lifecycle
from holdfast.core.priority import STRICT_STEP_MS
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Enqueued, State
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, WorkerOrders, WorkerRecord
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import LEASE_MS, Kit, ack, every_minute, retry

group = Group("reopen")

_WORKER = WorkerRecord(
    worker_id="w", host="h", pid=1, version="1", queues=("q",), types=(), processes=1, concurrency=1, running=0
)


@group.shared
async def records_survive(kit: Kit) -> None:
    """Every task is the same after a reopening, whatever its state."""
    await kit.enqueue(4, headers={"a": "b"})
    await kit.enqueue(delay_ms=50)
    claims = await kit.reserve(3)
    await kit.store.apply([ack(claims[0], b'"r"'), retry(claims[1])])
    dead = await kit.dead_letter(queue="q")
    ids = [claim.task_id for claim in claims] + [dead]
    before = await kit.store.get(ids), await kit.store.counts()
    await kit.reopen()
    expect("records and counts", (await kit.store.get(ids), await kit.store.counts()), before)


@group.shared
async def claims_survive(kit: Kit) -> None:
    """A worker's claim can be settled, and a repeated claim_id is known, after a reopening."""
    await kit.enqueue(3)
    request = kit.request(2)
    first = await kit.store.reserve(request)
    await kit.reopen()
    expect("repeat", (await kit.store.reserve(request)).tasks, first.tasks)
    expect("ack", (await kit.apply(ack(first.tasks[0]))).applied, True)


@group.shared
async def deduplication_survives(kit: Kit) -> None:
    """A task_id and a request_id are known after a reopening."""
    task = kit.new_task(request_id="r")
    await kit.add(task)
    await kit.reopen()
    known = Enqueued(task.task_id, created=False)
    expect("same task", await kit.add(task), known)
    expect("same request_id", await kit.add(kit.new_task(request_id="r")), known)


@group.shared
async def settlements_survive(kit: Kit) -> None:
    """A settlement repeated after a reopening is a success; another one is stale."""
    claim = await kit.claim()
    await kit.apply(ack(claim))
    await kit.reopen()
    expect("repeat", (await kit.apply(ack(claim))).repeated, True)
    expect("another", (await kit.apply(retry(claim))).reason, "stale_claim")


@group.shared
async def leases_and_due_times_survive(kit: Kit) -> None:
    """Leases run out and tasks become due after a reopening as they would have before."""
    claim = await kit.claim()
    [delayed] = await kit.enqueue(delay_ms=LEASE_MS)
    await kit.reopen()
    kit.clock.advance(LEASE_MS)
    expect("expired", [lost.task_id for lost in await kit.expired()], [claim.task_id])
    expect("promoted", (await kit.promote()).count, 1)
    expect("state", await kit.state(delayed), State.READY)


@group.shared
async def pause_cancel_and_discards_survive(kit: Kit) -> None:
    """A pause, a cancellation that was accepted and the records of discards are kept."""
    claim = await kit.claim()
    await kit.apply(lifecycle.cancel(claim.task_id))
    dead = await kit.dead_letter(queue="q")
    await kit.apply(lifecycle.discard(dead, "why"))
    await documents.pause(kit.store, "p", paused=True)
    await kit.reopen()
    expect("cancel requested", (await kit.record(claim.task_id)).cancel_requested, True)
    expect("discards", [record.task_id for record in await documents.discards(kit.store)], [dead])
    expect("paused", (await kit.counts("p")).paused, True)


@group.shared
async def epochs_survive(kit: Kit) -> None:
    """An epoch never comes back: after a reopening the old one is still refused."""
    old = await kit.leader_epoch()
    current = await kit.new_leader_epoch()
    await kit.reopen()
    leads = await kit.store.lead(MAINTENANCE, "leader-2", 10_000_000)
    expect("epoch", (leads.held, leads.epoch), (True, current))
    try:
        await kit.store.promote(old)
    except StaleEpoch:
        return
    raise AssertionError("the old epoch is refused")


@group.shared
async def deadlines_steps_and_priorities_survive(kit: Kit) -> None:
    """Deadlines to start, steps of queues and changed priorities are kept."""
    await documents.set_step(kit.store, "strict", STRICT_STEP_MS)
    old, urgent = await kit.enqueue(2, queue="strict", priority=1)
    await kit.apply(lifecycle.prioritize(urgent, 2))
    expiring = await kit.enqueue(policy=RunPolicy(expires_ms=1_000))
    await kit.reopen()
    kit.clock.advance(1_000)
    expect("unstarted", await kit.unstarted(), expiring)
    expect("step", (await kit.counts("strict")).step_ms, STRICT_STEP_MS)
    [latest] = await kit.enqueue(queue="strict", priority=3)
    order = [task.task_id for task in await kit.reserve(5, queues=("strict",))]
    expect("order", order, [latest, urgent, old])


@group.shared
async def schedules_and_orders_survive(kit: Kit) -> None:
    """Schedules with their next occurrences and versions, and orders for workers, are kept."""
    schedule = every_minute(next_at_ms=kit.clock.now_ms())
    await documents.put_schedule(kit.store, "nightly", schedule, 0)
    await kit.store.announce(_WORKER, 10_000)
    await documents.order(kit.store, "w", WorkerOrders(concurrency=7))
    await kit.reopen()
    expect("schedule", await documents.schedule(kit.store, "nightly"), schedule)
    expect("due", (await documents.schedules(kit.store, 0)).schedules, [schedule])
    expect("repeat", await documents.put_schedule(kit.store, "nightly", schedule, 0), True)
    expect("removal", await documents.put_schedule(kit.store, "nightly", None, 1), True)
    expect("orders", await kit.store.announce(_WORKER, 10_000), WorkerOrders(concurrency=7))


@group.shared
async def other_stores_see_it_at_once(kit: Kit) -> None:
    """What one opened store has answered, another one sees."""
    other = await kit.another()
    claim = await kit.claim()
    expect("state", [task and task.state for task in await other.get([claim.task_id])], [State.CLAIMED])
    expect("ack", [verdict.applied for verdict in await other.apply([ack(claim)])], [True])
    expect("state", await kit.state(claim.task_id), State.SUCCEEDED)
    await other.announce(_WORKER, 10_000)
    expect("workers", [record.worker_id for record in await kit.store.workers()], ["w"])


@group.shared
async def closing_finishes_calls_under_way(kit: Kit) -> None:
    """Calls that were made before the close are answered, and what they recorded is there afterwards."""
    calls = [asyncio.create_task(kit.enqueue(5)) for _ in range(20)]
    await asyncio.sleep(0)
    await kit.reopen()
    answered = [task_id for ids in await asyncio.gather(*calls) for task_id in ids]
    expect("answered", len(set(answered)), 100)
    expect("recorded", (await kit.counts()).states.get(State.READY), 100)


@group.shared
async def migrating_again_takes_no_step(kit: Kit) -> None:
    """A store that is up to date is left as it is."""
    expect("steps", await kit.store.migrate(), [])
    await kit.reopen()
    expect("steps after reopening", await kit.store.migrate(), [])


@group.case
async def healthy_store_reports_no_problem(kit: Kit) -> None:
    """The report of a fresh store on itself has lines, and none is a problem."""
    findings = await kit.store.probe()
    expect_true("there are findings", findings)
    expect("problems", [finding for finding in findings if finding.level == "problem"], [])


@group.case
async def migrated_store_has_nothing_to_migrate(kit: Kit) -> None:
    """Once the schema is up to date, neither a look nor a second migration finds a step to take."""
    expect("steps that are missing", await kit.store.migrate(dry_run=True), [])
    await kit.store.migrate()
    expect("steps taken again", await kit.store.migrate(), [])
