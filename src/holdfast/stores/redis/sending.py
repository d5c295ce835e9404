"""Our records as the scripts take them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.core.lifecycle import Change
from holdfast.core.policy import DEFAULT_POLICY
from holdfast.core.schedule import Schedule
from holdfast.core.task import FINAL_STATES, NewTask
from holdfast.errors import BadOption
from holdfast.stores.contract import Query, Reserve, Retention
from holdfast.stores.redis.clients import Word

pack = msgspec.msgpack.Encoder().encode
json = msgspec.json.Encoder().encode
_NO_CHANGES: Final = pack([])


def tasks(new: Sequence[NewTask]) -> tuple[bytes, ...]:
    """Tasks, then their payloads."""
    return (pack([_envelope(task) for task in new]), *[task.payload for task in new])


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
        json(task.headers).decode() if task.headers else None,
        None if policy is DEFAULT_POLICY or policy == DEFAULT_POLICY else json(policy).decode(),
        policy.expires_ms,
    )


def changes(wanted: Sequence[Change]) -> tuple[bytes, ...]:
    """Changes, then their results."""
    if not wanted:
        return (_NO_CHANGES,)
    results = [change.result for change in wanted if change.result is not None]
    return (pack([_change(change) for change in wanted]), *results)


def _change(change: Change) -> tuple[Any, ...]:
    return (
        change.event.value,
        change.task_id,
        change.token,
        change.lapsed_only,
        change.epoch,
        change.delay_ms,
        change.outcome,
        change.error.type if change.error else None,
        json(change.error).decode() if change.error else None,
        change.reason,
        change.result is not None,
        change.priority,
    )


def request(reserve: Reserve) -> bytes:
    """A worker's request; a fresh call has a name of its own, by which its repeat is known."""
    return pack(
        (
            reserve.claim_id,
            reserve.worker_id,
            list(reserve.shares),
            reserve.max_tasks,
            reserve.lease_ms,
            None if reserve.types is None else sorted(reserve.types),
            secrets.token_hex(8) if reserve.fresh else None,
        )
    )


def query(wanted: Query) -> bytes:
    """What is looked for."""
    states = None if wanted.states is None else sorted(state.value for state in wanted.states)
    return pack((states, wanted.queue, wanted.type, wanted.worker_id, wanted.error_type))


def position(cursor: str | None) -> str:
    """Where a page begins."""
    if cursor is None:
        return ""
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 18:
        raise BadOption(f"cursor {cursor[:40]!r} is not one that a page ended with")
    return cursor


def ages(retention: Retention) -> bytes:
    """How long tasks of each final state are kept."""
    return pack([
        (state.value, retention.age_ms(state), retention.age_when_nearly_full_ms(state))
        for state in sorted(FINAL_STATES)
    ])  # fmt: skip


def schedule(new: Schedule | None) -> tuple[Word, Word, Word]:
    """The version, the next tick and the document of a schedule."""
    if new is None:
        return 0, "", b""
    return new.version, "" if new.next_at_ms is None else new.next_at_ms, json(new)
