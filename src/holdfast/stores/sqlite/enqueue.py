"""Enqueue: tasks into the tables, each at most once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.priority import AGED_STEP_MS, rank
from holdfast.core.retry import DEAD_LETTER_TTL_MS, DEFAULT_POLICY, RESULT_TTL_MS, RunPolicy
from holdfast.core.task import Enqueued, NewTask, State
from holdfast.stores.contract import MAINTENANCE_WAKEUP
from holdfast.stores.sqlite.transaction import Transaction, headers_text, policy_text

_steps_decoder = msgspec.json.Decoder(dict[str, int])


def enqueue(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Enqueued]:
    """Records what is new, answers for what is known."""
    last, earliest, steps = transaction.row("before_enqueue")
    numbered = list(enumerate(tasks, last + 1))
    rows = _rows(numbered, transaction.now_ms, _steps_decoder.decode(steps))
    created = {seq for (seq,) in transaction.run_many("insert_task", rows)}
    new = [(seq, task) for seq, task in numbered if seq in created]
    transaction.run_many(
        "insert_envelope",
        [(seq, task.payload, headers_text(task.headers), policy_text(task.policy)) for seq, task in new],
    )
    _insert_deadlines(transaction, new)
    _notify(transaction, [row for row in rows if row[0] in created], earliest)
    return [Enqueued(task.task_id) if seq in created else _known(transaction, task) for seq, task in numbered]


_Row = tuple[int, str, str, str, str, int, int, int, int, str | None, int | None, int | None]


def _rows(numbered: Sequence[tuple[int, NewTask]], now_ms: int, steps: Mapping[str, int]) -> list[_Row]:
    return [_row(seq, task, now_ms, steps.get(task.queue, AGED_STEP_MS)) for seq, task in numbered]


def _row(seq: int, task: NewTask, now_ms: int, step_ms: int) -> _Row:
    run_at_ms = now_ms + task.delay_ms if task.run_at_ms is None else task.run_at_ms
    if run_at_ms > now_ms:
        state, place = State.SCHEDULED, run_at_ms
    else:
        state, place = State.READY, now_ms
    return (
        seq,
        task.task_id,
        task.queue,
        task.type,
        state.value,
        task.priority,
        rank(place, task.priority, step_ms),
        place,
        now_ms,
        task.request_id,
        *ttls(task.policy),
    )


def ttls(policy: RunPolicy) -> tuple[int | None, int | None]:
    """How long the task is kept, None where that is the default."""
    if policy is DEFAULT_POLICY:
        return None, None
    result_ms, dead_letter_ms = policy.result_ttl_ms, policy.dead_letter_ttl_ms
    return (
        None if result_ms == RESULT_TTL_MS else result_ms,
        None if dead_letter_ms == DEAD_LETTER_TTL_MS else dead_letter_ms,
    )


def _insert_deadlines(transaction: Transaction, new: Sequence[tuple[int, NewTask]]) -> None:
    limits = [(seq, task.policy.expires_ms) for seq, task in new if task.policy.expires_ms is not None]
    if limits:
        transaction.run_many("insert_deadline", [(seq, transaction.now_ms + expires_ms) for seq, expires_ms in limits])


def _notify(transaction: Transaction, rows: Sequence[_Row], earliest_before: int | None) -> None:
    transaction.wakeups.update({row[2] for row in rows if row[4] == State.READY})
    due = [row[7] for row in rows if row[4] == State.SCHEDULED]
    if due and (earliest_before is None or min(due) < earliest_before):
        transaction.wakeups.add(MAINTENANCE_WAKEUP)


def _known(transaction: Transaction, task: NewTask) -> Enqueued:
    found = transaction.row("known_task", (task.task_id,))
    name = f"task_id {task.task_id}"
    if not found:
        found = transaction.row("known_request", (task.queue, task.request_id))
        name = f"request_id {task.request_id!r} in queue {task.queue!r}"
    task_id, queue, task_type, payload = found
    if (queue, task_type, payload) == (task.queue, task.type, task.payload):
        return Enqueued(task_id, created=False)
    # A caller of this queue need not know what the task in another one is.
    what = f"another {task_type} call" if queue == task.queue else "a task in another queue"
    return Enqueued(task_id, created=False, conflict=f"{name} already stands for {what}")
