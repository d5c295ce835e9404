"""History: one line for every claim that has ended, whatever ended it."""

from __future__ import annotations

import msgspec

from holdfast.core import lifecycle
from holdfast.core.task import Attempt, Failure
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect, only
from holdfast.testing.kit import FAILURE, LEASE_MS, Kit, ack, every_settlement, retry

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
