"""Settle and reserve in one call: one round trip, one transaction."""

from __future__ import annotations

import msgspec

from holdfast.core import lifecycle
from holdfast.core.task import State
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import FOREIGN_TOKEN, Kit, ack, retry

group = Group("settle_reserve")


@group.case
async def both_in_one_call(kit: Kit) -> None:
    """The last batch is settled and the next one claimed in one call."""
    await kit.enqueue(4)
    first = await kit.reserve(2)
    answer = await kit.store.reserve(kit.request(2), [ack(claim) for claim in first])
    expect("verdicts", [verdict.state for verdict in answer.verdicts], [State.SUCCEEDED] * 2)
    expect("new tasks", len(answer.tasks), 2)
    expect("counts", _nonzero((await kit.counts()).states), {State.SUCCEEDED: 2, State.CLAIMED: 2})


@group.case
async def released_task_can_be_taken_in_the_same_call(kit: Kit) -> None:
    """Settlements come first: what they make ready can be reserved by the same call."""
    claim = await kit.claim()
    answer = await kit.store.reserve(kit.request(), [lifecycle.release(claim.task_id, claim.token)])
    expect("tasks", [task.task_id for task in answer.tasks], [claim.task_id])
    expect("attempt", answer.tasks[0].attempt, 1)


@group.case
async def retried_task_is_not_taken_before_its_time(kit: Kit) -> None:
    """A task that fails in the call waits for its retry."""
    claim = await kit.claim()
    answer = await kit.store.reserve(kit.request(), [retry(claim, 1)])
    expect("tasks", answer.tasks, [])
    expect("state", await kit.state(claim.task_id), State.RETRY_PENDING)


@group.case
async def refused_settlements_do_not_stop_the_rest(kit: Kit) -> None:
    """A stale or unknown settlement gets its verdict; the others and the reserve go through."""
    await kit.enqueue(3)
    first, second = await kit.reserve(2)
    stale = msgspec.structs.replace(ack(first), token=FOREIGN_TOKEN)
    unknown = msgspec.structs.replace(ack(first), task_id=kit.ids.task_id())
    answer = await kit.store.reserve(kit.request(), [stale, unknown, ack(second)])
    reasons = [(verdict.applied, verdict.reason) for verdict in answer.verdicts]
    expect("verdicts", reasons, [(False, "stale_claim"), (False, "unknown"), (True, "")])
    expect("new tasks", len(answer.tasks), 1)


@group.case
async def lost_reply_then_repeat(kit: Kit) -> None:
    """The whole call sent again settles nothing twice and gets the same tasks."""
    await kit.enqueue(4)
    first = await kit.reserve(2)
    request, changes = kit.request(2), [ack(claim) for claim in first]
    answer = await kit.store.reserve(request, changes)
    again = await kit.store.reserve(request, changes)
    expect("tasks", again.tasks, answer.tasks)
    expect("verdicts", [(v.applied, v.repeated) for v in again.verdicts], [(True, True)] * 2)
    expect("counts", _nonzero((await kit.counts()).states), {State.SUCCEEDED: 2, State.CLAIMED: 2})


@group.case
async def settles_tasks_of_any_queue(kit: Kit) -> None:
    """Settlements need not belong to the queues that are asked."""
    claim = await kit.claim(queue="elsewhere")
    answer = await kit.store.reserve(kit.request(), [ack(claim)])
    expect("verdict", answer.verdicts[0].applied, True)


def _nonzero(states: dict[State, int]) -> dict[State, int]:
    return {state: number for state, number in states.items() if number}
