"""Queries: get, find, counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.ids import check_task_id
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import FINAL_STATES, HISTORY_LIMIT, Attempt, State, Task
from holdfast.errors import UnknownTask
from holdfast.stores.contract import MAX_PAGE, Page, Query, QueueCounts
from holdfast.stores.decode import failure_of, number_in, shown_headers, shown_policy
from holdfast.stores.sqlite.transaction import SQL, Transaction
from holdfast.stores.sqltext import render

#: States of which there may be millions: newest first is found sooner by walking the table from its end.
_COMMON = frozenset({State.READY, State.SUCCEEDED, State.SCHEDULED, State.BLOCKED})
#: Above every number of a task.
_NEWEST: Final = 2**63 - 1
_TASK_FIELDS = Task.__struct_fields__[:17]
#: A search looks at this many tasks at a time, so often at most; then its page ends early.
STEP_TASKS: Final = 5_000
STEPS: Final = 20
#: Not by an index that fits the conditions: then all that is in it would have to be sorted, for each step again.
_BY_NUMBER: Final = "NOT INDEXED"
#: Tasks in a rare state are read all at once, and sorted, if they are not more than these.
FEW_TASKS: Final = 10_000


def get(transaction: Transaction, task_ids: Sequence[str]) -> list[Task | None]:
    """The tasks with their history, None where there is none."""
    return [_get(transaction, task_id) for task_id in task_ids]


def _get(transaction: Transaction, task_id: str) -> Task | None:
    try:
        check_task_id(task_id)
    except UnknownTask:
        return None
    rows = _select(transaction, "", "t.task_id = ?", (task_id,))
    if not rows:
        return None
    history = [_attempt(row) for row in transaction.rows("history", (rows[0][20],))]
    return msgspec.structs.replace(
        _task(rows[0]), history=(*history, *_success(rows[0]))[-HISTORY_LIMIT:], result=rows[0][21]
    )


def find(transaction: Transaction, query: Query) -> Page:
    """One page, newest first."""
    limit = max(1, min(query.limit, MAX_PAGE))
    rows, reached = _look_in_index(transaction, query, limit + 1) or _look_step_by_step(transaction, query, limit + 1)
    if len(rows) > limit:
        reached = rows[limit - 1][20]
    cursor = None if reached is None else str(reached)
    return Page([_task(row) for row in rows[:limit]], cursor, [str(row[20]) for row in rows[:limit]])


def _look_in_index(transaction: Transaction, query: Query, most: int) -> tuple[list[Any], None] | None:
    """The tasks in states that are rare, by the index of these; None if it has none, or too many in it."""
    hint, predicate = _index(query.states)
    if not hint:
        return None
    states = _state_condition(query.states or ())
    count = SQL["count_few"].replace("{hint}", hint).replace("{conditions}", f"{states} AND {predicate}")
    number: Any = transaction.connection.execute(count, (FEW_TASKS + 1,)).get
    if number > FEW_TASKS:
        return None
    conditions, bindings = _conditions(query)
    if query.cursor is not None:
        conditions.append("t.seq < ?")
        bindings.append(number_in(query.cursor))
    return _newest(transaction, hint, [*conditions, predicate], bindings, most), None


def _look_step_by_step(transaction: Transaction, query: Query, most: int) -> tuple[list[Any], int | None]:
    """The tasks from the newest on, and how far the search has come if it has not come to the end."""
    conditions, bindings = _conditions(query)
    below = _NEWEST if query.cursor is None else number_in(query.cursor)
    if not conditions:
        return _newest(transaction, _BY_NUMBER, ["t.seq < ?"], [below], most), None
    rows: list[Any] = []
    for _ in range(STEPS):
        lowest = transaction.value("step_back", (below, STEP_TASKS - 1))
        steps = ["t.seq < ?", "t.seq >= ?", *conditions]
        rows += _newest(transaction, _BY_NUMBER, steps, [below, lowest or 0, *bindings], most - len(rows))
        if lowest is None or len(rows) == most:
            return rows, None
        below = lowest
    return rows, below


def _newest(
    transaction: Transaction, hint: str, conditions: Sequence[str], bindings: Sequence[Any], most: int
) -> list[Any]:
    return _select(transaction, hint, f"{' AND '.join(conditions)} ORDER BY t.seq DESC LIMIT ?", (*bindings, most))


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    bindings: list[Any] = []
    if query.states is not None:
        conditions.append(_state_condition(query.states))
    for column, value in (("queue", query.queue), ("type", query.type), ("worker_id", query.worker_id)):
        if value is not None:
            conditions.append(f"t.{column} = ?")
            bindings.append(value)
    if query.error_type is not None:
        conditions.append(
            "? = (SELECT a.error_type FROM attempts a WHERE a.seq = t.seq ORDER BY a.delivery DESC LIMIT 1)"
        )
        bindings.append(query.error_type)
    return conditions, bindings


def _state_condition(states: Iterable[State]) -> str:
    """With literals, not parameters: only then does SQLite see that a partial index fits."""
    names = ", ".join(f"'{State(state).value}'" for state in sorted(states))
    return f"t.state IN ({names})"


def _index(states: frozenset[State] | None) -> tuple[str, str]:
    """Which index to walk for states that are rare, and its predicate; the planner has no statistics to know."""
    if not states or states & _COMMON:
        return "", ""
    if states == {State.CLAIMED}:
        return "INDEXED BY claimed", f"t.state = '{State.CLAIMED}'"
    if states <= FINAL_STATES:
        return "INDEXED BY finished", "t.delete_at_ms IS NOT NULL"
    if states == {State.RETRY_PENDING}:
        return "INDEXED BY due", render("t.state IN ({scheduled}, {retry_pending})")
    return "", ""


def _select(transaction: Transaction, hint: str, conditions: str, bindings: Sequence[Any]) -> list[Any]:
    text = SQL["task"].replace("{hint}", hint).replace("{conditions}", conditions)
    return transaction.connection.execute(text, bindings).fetchall()


def _task(row: Sequence[Any]) -> Task:
    fields = dict(zip(_TASK_FIELDS, row[:17], strict=True))
    fields["state"] = State(row[3])
    fields["cancel_requested"] = bool(row[13])
    if row[3] != State.CLAIMED:
        fields |= dict.fromkeys(("worker_id", "claimed_at_ms", "lease_expires_at_ms"))
    return Task(**fields, payload=row[17], headers=shown_headers(row[18]), policy=shown_policy(row[19]))


def _success(row: Sequence[Any]) -> list[Attempt]:
    """The attempt that succeeded, which the task's own row keeps."""
    if row[3] != State.SUCCEEDED:
        return []
    return [_attempt((row[6], row[5], row[10], "succeeded", row[11], row[9], None))]


def _attempt(row: Sequence[Any]) -> Attempt:
    delivery, attempt, worker_id, outcome, started_at_ms, ended_at_ms, error = row
    return Attempt(
        delivery=delivery,
        attempt=attempt,
        worker_id=worker_id,
        outcome=outcome,
        started_at_ms=started_at_ms,
        ended_at_ms=ended_at_ms,
        error=None if error is None else failure_of(error),
    )


def counts(transaction: Transaction) -> list[QueueCounts]:
    """Depths of all queues, from the indexes alone."""
    settings = {queue: (bool(paused), step_ms) for queue, paused, step_ms in transaction.rows("queues")}
    ready = transaction.rows("count_ready")
    since = {queue: since_ms for queue, _, _, since_ms in ready} | dict(transaction.rows("oldest_by_step"))
    depths: dict[str, dict[State, int]] = {queue: {} for queue in settings}
    for queue, state, count, *_ in [*ready, *transaction.rows("count_rest")]:
        depths.setdefault(queue, {})[State(state)] = count
    return [
        QueueCounts(
            queue=queue,
            paused=paused,
            step_ms=step_ms,
            states=depths[queue],
            oldest_ready_ms=transaction.now_ms - since[queue] if queue in since else None,
        )
        for queue in sorted(depths)
        for paused, step_ms in (settings.get(queue, (False, AGED_STEP_MS)),)
    ]
