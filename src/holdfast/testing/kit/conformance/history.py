"""History: one line for every claim that has ended, whatever ended it."""

from __future__ import annotations

import msgspec

from holdfast.core import lifecycle
from holdfast.core.task import HISTORY_LIMIT, Attempt, Failure
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, only
from holdfast.testing.kit.kit import FAILURE, LEASE_MS, Kit, ack, every_settlement, retry

group = Group("history")

OUTCOMES = {
    "ack": "succeeded",
    "retry": "failed",
    "give up": "failed",
    "snooze": "snoozed",
    "release": "released",
    "stop": "cancelled",
    "lose": "worker_lost",
}


@group.case
async def every_settlement_writes_one_line(kit: Kit) -> None:
    """Each settlement leaves its outcome, worker, times and error."""
    for name, outcome in OUTCOMES.items():
        claim = await kit.claim(queue=name.replace(" ", "_"))
        started_ms = kit.clock.now_ms()
        kit.clock.advance(25)
        change = every_settlement(claim)[name]
        await kit.apply(change)
        line = Attempt(
            delivery=1,
            attempt=1,
            worker_id="worker-1",
            outcome=outcome,
            started_at_ms=started_ms,
            ended_at_ms=kit.clock.now_ms(),
            error=change.error,
        )
        expect(f"history after {name}", (await kit.record(claim.task_id)).history, (line,))


@group.case
async def every_run_is_listed_in_order(kit: Kit) -> None:
    """A task that failed, was released, lost its lease and succeeded shows all four runs."""
    claim = await kit.claim()
    await kit.apply(retry(claim, 0))
    await kit.promote()
    claim = await kit.reserve_one(worker_id="worker-2")
    await kit.apply(lifecycle.release(claim.task_id, claim.token))
    claim = await kit.reserve_one(worker_id="worker-3")
    kit.clock.advance(LEASE_MS)
    await kit.requeue_expired()
    claim = await kit.reserve_one(worker_id="worker-4")
    await kit.apply(ack(claim))
    history = (await kit.record(claim.task_id)).history
    runs = [(entry.delivery, entry.attempt, entry.worker_id, entry.outcome) for entry in history]
    expect(
        "runs",
        runs,
        [
            (1, 1, "worker-1", "failed"),
            (2, 2, "worker-2", "released"),
            (3, 2, "worker-3", "lease_expired"),
            (4, 3, "worker-4", "succeeded"),
        ],
    )


@group.case
async def last_entries_are_kept(kit: Kit) -> None:
    """A task that is released again and again keeps the last lines of its history and the count of all."""
    [task_id] = await kit.enqueue()
    claims = []
    for _ in range(HISTORY_LIMIT + 3):
        claims.append(await kit.reserve_one())
        await kit.apply(lifecycle.release(task_id, claims[-1].token))
    record = await kit.record(task_id)
    expect("deliveries", record.deliveries, HISTORY_LIMIT + 3)
    expect("lines", [entry.delivery for entry in record.history], list(range(4, HISTORY_LIMIT + 4)))
    gone, kept = [await kit.apply(lifecycle.release(task_id, claims[n].token)) for n in (2, 3)]
    expect("repeat of what is no longer known", (gone.applied, gone.reason), (False, "stale_claim"))
    expect("repeat of the oldest line", (kept.applied, kept.repeated), (True, True))
    await kit.apply(ack(await kit.reserve_one()))
    lines = [entry.delivery for entry in (await kit.record(task_id)).history]
    expect("lines at the end", lines, list(range(5, HISTORY_LIMIT + 5)))


@group.case
async def errors_are_kept_as_text(kit: Kit) -> None:
    """Type, message and traceback of an error come back as they were sent, zero characters and quotes included."""
    for failure in (FAILURE, Failure("a.B", 'it\'s "\x00" \\ 🐈\n', "\x00 line\n" * 1_000)):
        claim = await kit.claim()
        await kit.apply(msgspec.structs.replace(retry(claim), error=failure))
        entry = only("history", (await kit.record(claim.task_id)).history)
        expect("error", entry.error, failure)


@group.case
async def refused_changes_leave_no_line(kit: Kit) -> None:
    """A refused or repeated settlement writes nothing."""
    claim = await kit.claim()
    await kit.apply(ack(claim))
    await kit.apply(ack(claim))
    await kit.apply(retry(claim))
    expect("lines", len((await kit.record(claim.task_id)).history), 1)


@group.case
async def cancelled_while_waiting_leaves_no_line(kit: Kit) -> None:
    """A task that never ran has no history."""
    [task_id] = await kit.enqueue()
    await kit.apply(lifecycle.cancel(task_id))
    expect("history", (await kit.record(task_id)).history, ())
