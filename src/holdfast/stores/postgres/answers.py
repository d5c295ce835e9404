"""What the functions answer, as our records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from holdfast.core.lifecycle import Verdict
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import HISTORY_LIMIT, Attempt, Enqueued, ExpiredClaim, NewTask, State, Task
from holdfast.errors import BadOption, StaleEpoch
from holdfast.stores.contract import MAINTENANCE_WAKEUP, Expired, QueueCounts, WorkerRecord
from holdfast.stores.decode import failure_of, shown_headers, shown_policy
from holdfast.stores.decorate import stale_map
from holdfast.stores.documents import Discard, QueueSettings
from holdfast.stores.postgres.errors import Raised

#: The SQLSTATE of a queue with too many combinations of type and priority.
_TOO_MANY_LANES: Final = "HF004"
_record_decoder = msgspec.json.Decoder(WorkerRecord)
Row = Sequence[Any]
_DEFAULTS: Final = QueueSettings()


@contextmanager
def refusals() -> Iterator[None]:
    """What the functions refuse, as the mistake of the caller that it is."""
    try:
        yield
    except Raised as error:
        if error.code == _TOO_MANY_LANES:
            raise BadOption(
                f"{error}; use fewer task types and priorities in it, or wait until finished tasks are deleted"
            ) from None
        raise


def recorded(url: str, tasks: Sequence[NewTask], rows: Sequence[Row]) -> tuple[list[Enqueued], set[str]]:
    """What `enqueue` answers to these tasks, and the wake-ups to send when that is committed."""
    answers = [Enqueued(task.task_id) for task in tasks]
    wakeups = {task.queue for task in tasks if not task.delay_ms or task.run_at_ms is not None}
    for row in rows:
        if row[0] == "stale_map":
            raise stale_map(url, row[2])
        if row[0] == "maintenance":
            wakeups.add(MAINTENANCE_WAKEUP)
        else:
            answers[row[1] - 1] = enqueued(tasks[row[1] - 1], row)
    return answers, wakeups


def enqueued(task: NewTask, row: Row) -> Enqueued:
    """The answer for a task that was not recorded."""
    outcome, _, _, known_id, known_type = row
    if outcome == "known":
        return Enqueued(known_id, created=False)
    name = {
        "task_id": f"task_id {task.task_id}",
        "request_id": f"request_id {task.request_id!r} in queue {task.queue!r}",
    }[outcome]
    what = "a task in another queue" if known_type is None else f"another {known_type} call"
    return Enqueued(known_id, created=False, conflict=f"{name} already stands for {what}")


def check_epoch(given: int | None, current: int) -> None:
    """Refuses what an earlier leader of the maintenance has sent."""
    if given != current:
        raise StaleEpoch(f"the maintenance has epoch {current} now, this call is of epoch {given}")


def verdict(applied: bool, repeated: bool, reason: str, state: str | None) -> Verdict:
    """One verdict."""
    return Verdict(applied, repeated, reason, None if state is None else State(state))


def expired(rows: Sequence[Row]) -> Expired:
    """Claims whose lease has expired, and tasks that were not started in time, which have no token."""
    claims = [
        ExpiredClaim(task_id, token, attempt, shown_policy(policy), worker_id)
        for task_id, token, attempt, policy, worker_id in rows
        if token is not None
    ]
    return Expired(claims, [row[0] for row in rows if row[1] is None])


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
        headers=shown_headers(row[18]),
        policy=shown_policy(row[19]),
        result=row[20] if with_history else None,
        history=_history(state, row) if with_history else (),
    )


def _history(state: State, row: Row) -> tuple[Attempt, ...]:
    ended = [_attempt(entry) for entry in row[21] or ()]
    if state is State.SUCCEEDED:
        # The claim that succeeded is the last one, and stays with the finished task.
        ended.append(_attempt((row[6], row[5], row[10], "succeeded", row[11], row[9], None)))
    return tuple(ended[-HISTORY_LIMIT:])


def _attempt(entry: Row) -> Attempt:
    delivery, attempt, worker_id, outcome, started_at_ms, ended_at_ms, error = entry
    return Attempt(
        delivery=delivery,
        attempt=attempt,
        worker_id=worker_id,
        outcome=outcome,
        started_at_ms=started_at_ms,
        ended_at_ms=ended_at_ms,
        error=None if error is None else failure_of(error),
    )


def discard(row: Row) -> Discard:
    """The record of one discarded task."""
    _, _, task_id, task_type, queue, payload, reason, discarded_at_ms, error = row
    failure = failure_of(error) if error else None
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


def counts(rows: Sequence[Row]) -> list[QueueCounts]:
    """Depths of all queues; the settings of a queue have a row without a state."""
    depths: dict[str, dict[State, int]] = {}
    oldest: dict[str, int] = {}
    settings: dict[str, QueueSettings] = {}
    for queue, state, number, oldest_ms, paused, step_ms in rows:
        states = depths.setdefault(queue, {})
        if state is None:
            settings[queue] = QueueSettings(paused=paused, step_ms=AGED_STEP_MS if step_ms is None else step_ms)
        else:
            states[State(state)] = number
        if state == State.READY:
            oldest[queue] = oldest_ms
    return [
        QueueCounts(
            queue=queue,
            paused=settings.get(queue, _DEFAULTS).paused,
            step_ms=settings.get(queue, _DEFAULTS).step_ms,
            states=depths[queue],
            oldest_ready_ms=oldest.get(queue),
        )
        for queue in sorted(depths)
    ]
