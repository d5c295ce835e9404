"""Settles what a child held when it ended."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change
from holdfast.core.retry import error_name
from holdfast.core.task import Failure
from holdfast.errors import TimedOut
from holdfast.stores.contract import MAX_BATCH, Reserve, Store
from holdfast.worker.backoff import persistently
from holdfast.worker.child_process import ChildProcess, Guilt
from holdfast.worker.limits import what_it_did
from holdfast.worker.messages import HeldTask


async def settle_remains(
    store: Store, child: ChildProcess, queues: Sequence[str], lease_ms: int, how_it_ended: str
) -> int:
    """Hands back what a dismissed child held, or counts it as `worker_lost`; gives how many were settled.

    The tasks for which it was killed are settled as what they did. The same call again, later, finds what a reserve
    that was on its way when the child died has claimed since.
    """
    held = [*child.holds.values(), *await _untold(store, child, queues, lease_ms)]
    detail = f"child {child.number} {how_it_ended}"
    changes = [_change(child, task, detail) for task in held]
    child.holds.clear()
    settled = 0
    for first in range(0, len(changes), MAX_BATCH):
        batch = changes[first : first + MAX_BATCH]
        verdicts = await persistently(partial(store.apply, batch), "settling for a child")
        settled += sum(verdict.applied for verdict in verdicts)
    return settled


async def _untold(store: Store, child: ChildProcess, queues: Sequence[str], lease_ms: int) -> list[HeldTask]:
    """Tasks of a reserve that was committed when the child died, before it could tell of them.

    The claim_id was told beforehand. The same reserve again gives the same tasks; for no types at all it
    cannot claim any others.
    """
    if not child.asking:
        return []
    request = Reserve(
        claim_id=child.asking,
        worker_id=child.worker_id,
        shares=[QueueShare(queue, MAX_BATCH) for queue in queues],
        max_tasks=MAX_BATCH,
        lease_ms=lease_ms,
        types=frozenset(),
    )
    reserved = await persistently(lambda: store.reserve(request), "looking for tasks of a child")
    return [HeldTask.of(0, task) for task in reserved.tasks]


def _change(child: ChildProcess, held: HeldTask, detail: str) -> Change:
    guilt = child.guilty.get(held.key)
    if guilt is Guilt.UNHEEDING:
        return lifecycle.stop(held.task_id, held.token)
    if guilt is Guilt.OVERSTAYED:
        return _timed_out(child, held, what_it_did(guilt, held))
    if child.dismissed:
        return lifecycle.release(held.task_id, held.token)
    return lifecycle.lose(
        held.task_id, held.token, "worker_lost", attempt=held.attempt, policy=child.policy(held), detail=detail
    )


def _timed_out(child: ChildProcess, held: HeldTask, what: str) -> Change:
    return lifecycle.time_out(
        held.task_id,
        held.token,
        Failure(error_name(TimedOut), f"{what}; its process was killed"),
        attempt=held.attempt,
        policy=child.policy(held),
        random_unit=random.random(),  # noqa: S311  (jitter)
    )
