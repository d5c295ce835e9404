"""Our records as the arguments of the scripts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.core.lifecycle import Change
from holdfast.core.retry import DEAD_LETTER_TTL_MS, DEFAULT_POLICY, RESULT_TTL_MS
from holdfast.core.task import Hold, NewTask
from holdfast.stores.contract import DocumentWrite, Query, Reserve, WorkerRecord
from holdfast.stores.redis.connection import Word

_pack: Final = msgspec.msgpack.Encoder().encode
_json: Final = msgspec.json.Encoder().encode
_NO_CHANGES: Final = _pack([])


def tasks(new: Sequence[NewTask]) -> tuple[bytes, ...]:
    """Tasks, then their payloads."""
    return (_pack([_envelope(task) for task in new]), *[task.payload for task in new])


def one_task(task: NewTask) -> tuple[Word, ...] | None:
    """One task that is ready at once, as enqueue_one.lua takes it; None if it is not that."""
    policy = task.policy
    if task.run_at_ms is not None or task.delay_ms > 0 or policy.expires_ms is not None:
        return None
    words: list[Word] = [task.task_id, task.type, task.queue, task.priority, task.payload, task.request_id or ""]
    if task.request_id is not None:
        words += ("i", task.request_id)
    if task.headers:
        words += ("h", _json(task.headers))
    if policy is not DEFAULT_POLICY and policy != DEFAULT_POLICY:
        words += ("o", _json(policy))
        if policy.result_ttl_ms != RESULT_TTL_MS:
            words += ("k", policy.result_ttl_ms)
        if policy.dead_letter_ttl_ms != DEAD_LETTER_TTL_MS:
            words += ("m", policy.dead_letter_ttl_ms)
    return tuple(words)


def _envelope(task: NewTask) -> tuple[Any, ...]:
    policy = task.policy
    return (
        task.task_id,
        task.type,
        task.queue,
        task.priority,
        task.delay_ms,
        task.run_at_ms,
        task.request_id,
        _json(task.headers).decode() if task.headers else None,
        None if policy is DEFAULT_POLICY or policy == DEFAULT_POLICY else _json(policy).decode(),
        policy.expires_ms,
        None if policy.result_ttl_ms == RESULT_TTL_MS else policy.result_ttl_ms,
        None if policy.dead_letter_ttl_ms == DEAD_LETTER_TTL_MS else policy.dead_letter_ttl_ms,
    )


def changes(wanted: Sequence[Change]) -> tuple[bytes, ...]:
    """Changes, then their results."""
    if not wanted:
        return (_NO_CHANGES,)
    results = [change.result for change in wanted if change.result is not None]
    return (_pack([_change(change) for change in wanted]), *results)


def _change(change: Change) -> tuple[Any, ...]:
    return (
        change.event.value,
        change.task_id,
        change.token,
        change.expired_only,
        change.epoch,
        change.delay_ms,
        change.outcome,
        change.error.type if change.error else None,
        _json(change.error).decode() if change.error else None,
        change.reason,
        change.result is not None,
        change.priority,
    )


def request(reserve: Reserve) -> bytes:
    """A worker's request; a fresh call has a name of its own, by which its repeat is known."""
    return _pack(
        (
            reserve.claim_id,
            reserve.worker_id,
            list(reserve.shares),
            reserve.max_tasks,
            reserve.lease_ms,
            None if reserve.types is None else sorted(reserve.types),
            secrets.token_hex(8) if reserve.fresh else None,
            reserve.max_bytes,
        )
    )


def query(wanted: Query) -> bytes:
    """What is looked for."""
    states = None if wanted.states is None else sorted(state.value for state in wanted.states)
    return _pack((states, wanted.queue, wanted.type, wanted.worker_id, wanted.error_type))


def holds(holds: Sequence[Hold]) -> tuple[bytes, ...]:
    """Claims, then the progress of those that have some."""
    rows = [(hold.task_id, hold.token, hold.progress is not None) for hold in holds]
    return (_pack(rows), *[hold.progress for hold in holds if hold.progress is not None])


def write(write: DocumentWrite) -> tuple[Word, ...]:
    """A write of a document, then its tasks if it has some."""
    claim = ("", "") if write.hold is None else (write.hold.task_id, write.hold.token)
    value = (0, b"") if write.value is None else (1, write.value)
    return (
        write.map_version,
        _word(write.epoch),
        write.kind,
        write.name,
        _word(write.expected),
        write.version,
        _word(write.due_at_ms),
        _word(write.ttl_ms),
        *claim,
        *value,
        *(tasks(write.tasks) if write.tasks else ()),
    )


def _word(number: int | None) -> Word:
    return "" if number is None else number


def worker(record: WorkerRecord) -> tuple[Word, Word]:
    """The id of a worker, and its record."""
    return record.worker_id, _json(record)
