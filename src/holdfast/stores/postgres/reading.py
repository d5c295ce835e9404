"""What the functions answer, as our records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.lifecycle import Verdict
from holdfast.core.policy import DEFAULT_POLICY, RunPolicy
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import Attempt, Enqueued, Failure, Lapsed, NewTask, State, Task
from holdfast.errors import StaleEpoch
from holdfast.stores.contract import UPKEEP_BELL, Discard, QueueCounts, WorkerOrders, WorkerRecord
from holdfast.stores.single import stale_map

_policy_decoder = msgspec.json.Decoder(RunPolicy)
_headers_decoder = msgspec.json.Decoder(dict[str, str])
_failure_decoder = msgspec.json.Decoder(Failure)
_record_decoder = msgspec.json.Decoder(WorkerRecord)
_orders_decoder = msgspec.json.Decoder(WorkerOrders)
Row = Sequence[Any]


def policy_of(text: str | None) -> RunPolicy:
    """The policy of its column."""
    return DEFAULT_POLICY if text is None else _policy_decoder.decode(text)


def headers_of(text: str | None) -> dict[str, str]:
    """The headers of their column."""
    return {} if text is None else _headers_decoder.decode(text)


def recorded(url: str, tasks: Sequence[NewTask], rows: Sequence[Row]) -> tuple[list[Enqueued], set[str]]:
    """What `enqueue` answers to these tasks, and the bells to ring when that is committed."""
    answers = [Enqueued(task.task_id) for task in tasks]
    bells = {task.queue for task in tasks if not task.delay_ms or task.run_at_ms is not None}
    for row in rows:
        if row[0] == "stale_map":
            raise stale_map(url, row[2])
        if row[0] == "upkeep":
            bells.add(UPKEEP_BELL)
        else:
            answers[row[1] - 1] = enqueued(tasks[row[1] - 1], row)
    return answers, bells


def enqueued(task: NewTask, row: Row) -> Enqueued:
    """The answer for a task that was not recorded."""
    outcome, _, _, known_id, known_type = row
    if outcome == "known":
        return Enqueued(known_id, created=False)
    name = {
        "task_id": f"task_id {task.task_id}",
        "request_id": f"request_id {task.request_id!r} in queue {task.queue!r}",
    }[outcome]
    return Enqueued(known_id, created=False, conflict=f"{name} already stands for another {known_type} call")


def check_epoch(given: int | None, current: int) -> None:
    """Refuses what an earlier owner of the upkeep has sent."""
    if given != current:
        raise StaleEpoch(f"upkeep belongs to epoch {current} now, this call is of epoch {given}")


def verdict(applied: bool, repeated: bool, reason: str, state: str | None) -> Verdict:
    """One verdict."""
    return Verdict(applied, repeated, reason, None if state is None else State(state))


def lapsed(row: Row) -> Lapsed:
    """One claim whose lease has run out."""
    task_id, token, attempt, policy, worker_id = row
    return Lapsed(task_id, token, attempt, policy_of(policy), worker_id)


def task(row: Row, *, with_history: bool = True) -> Task:
    """One task."""
    state = State(row[3])
    is_claimed = state is State.CLAIMED
    return Task(
        task_id=row[0],
        type=row[1],
        queue=row[2],
        state=state,
        priority=row[4],
        attempt=row[5],
        deliveries=row[6],
        created_at_ms=row[7],
        run_at_ms=row[8],
        finished_at_ms=row[9],
        worker_id=row[10] if is_claimed else None,
        claimed_at_ms=row[11] if is_claimed else None,
        lease_expires_at_ms=row[12],
        cancel_requested=row[13],
        progress=row[14],
        reason=row[15],
        request_id=row[16],
        payload=row[17],
        headers=headers_of(row[18]),
        policy=policy_of(row[19]),
        result=row[20] if with_history else None,
        history=_history(state, row) if with_history else (),
    )


def _history(state: State, row: Row) -> tuple[Attempt, ...]:
    ended = [_attempt(entry) for entry in row[21] or ()]
    if state is State.SUCCEEDED:
        # The claim that succeeded is the last one, and stays with the finished task.
        ended.append(_attempt((row[6], row[5], row[10], "succeeded", row[11], row[9], None)))
    return tuple(ended)


def _attempt(entry: Row) -> Attempt:
    delivery, attempt, worker_id, outcome, started_at_ms, ended_at_ms, error = entry
    return Attempt(
        delivery=delivery,
        attempt=attempt,
        worker_id=worker_id,
        outcome=outcome,
        started_at_ms=started_at_ms,
        ended_at_ms=ended_at_ms,
        error=None if error is None else _failure_decoder.decode(error),
    )


def discard(row: Row) -> Discard:
    """The record of one discarded task."""
    task_id, task_type, queue, payload, reason, discarded_at_ms, error = row
    failure = _failure_decoder.decode(error) if error else None
    return Discard(
        task_id=task_id,
        type=task_type,
        queue=queue,
        payload=payload,
        reason=reason,
        discarded_at_ms=discarded_at_ms,
        error=f"{failure.type}: {failure.message}" if failure else "",
    )


def worker(row: Row) -> WorkerRecord:
    """One worker heard of."""
    record, started_at_ms, seen_at_ms, alive = row
    return msgspec.structs.replace(
        _record_decoder.decode(record), started_at_ms=started_at_ms, seen_at_ms=seen_at_ms, alive=alive
    )


def orders(rows: Sequence[Row]) -> WorkerOrders | None:
    """The orders of a worker that has just said that it lives."""
    return _orders_decoder.decode(rows[0][0]) if rows and rows[0][0] is not None else None


def counts(rows: Sequence[Row]) -> list[QueueCounts]:
    """Depths of all queues; what is special about a queue has a row without a state."""
    depths: dict[str, dict[State, int]] = {}
    oldest: dict[str, int] = {}
    steps: dict[str, int] = {}
    paused: set[str] = set()
    for queue, state, number, oldest_ms, step_ms in rows:
        states = depths.setdefault(queue, {})
        if step_ms is not None:
            steps[queue] = step_ms
        elif state is None:
            paused.add(queue)
        else:
            states[State(state)] = number
        if state == State.READY:
            oldest[queue] = oldest_ms
    return [
        QueueCounts(
            queue=queue,
            paused=queue in paused,
            step_ms=steps.get(queue, AGED_STEP_MS),
            states=depths[queue],
            oldest_ready_ms=oldest.get(queue),
        )
        for queue in sorted(depths)
    ]
