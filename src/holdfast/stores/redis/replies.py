"""The replies of the scripts as our records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import HISTORY_LIMIT, Attempt, Claimed, Enqueued, ExpiredClaim, NewTask, State, Task
from holdfast.stores.contract import Document, QueueCounts, WorkerRecord
from holdfast.stores.decode import (
    Unreadable,
    bury_unreadable,
    failure_of,
    headers_of,
    policy_of,
    shown_headers,
    shown_policy,
)
from holdfast.stores.documents import DISCARD, Discard, discard_document

_unpack: Final = msgspec.msgpack.Decoder().decode
_record_decoder = msgspec.json.Decoder(WorkerRecord)


class _DiscardRow(msgspec.Struct, array_like=True):
    task_id: str
    type: str
    queue: str
    payload: msgspec.Raw
    reason: str
    discarded_at_ms: int
    error: str


_discard_decoder = msgspec.msgpack.Decoder(_DiscardRow)


def enqueued(task: NewTask, row: Sequence[Any]) -> Enqueued:
    """What became of one new task."""
    task_id = row[0].decode()
    if len(row) == 2:
        return Enqueued(task_id, created=bool(row[1]))
    if row[2] == b"queue":
        return Enqueued(task_id, created=False, conflict=f"task_id {task.task_id} already stands for another call")
    known = {
        b"task_id": f"task_id {task.task_id}",
        b"request_id": f"request_id {task.request_id!r} in queue {task.queue!r}",
    }
    conflict = f"{known[row[2]]} already stands for another {row[3].decode()} call"
    return Enqueued(task_id, created=False, conflict=conflict)


def verdict(row: Sequence[Any]) -> Verdict:
    """One verdict."""
    applied, repeated, reason, state = row
    known = State(state.decode()) if state and state != b"gone" else None
    return Verdict(bool(applied), bool(repeated), reason.decode(), known)


def claimed(rows: Sequence[Sequence[Any]]) -> tuple[list[Claimed], list[Change]]:
    """The claimed tasks, and the changes that make those dead letters that cannot be decoded."""
    tasks: list[Claimed] = []
    unreadable: list[Change] = []
    for row in rows:
        try:
            tasks.append(_claimed(row))
        except Unreadable as error:
            unreadable.append(bury_unreadable(row[0].decode(), row[1].decode(), error))
    return tasks, unreadable


def _claimed(row: Sequence[Any]) -> Claimed:
    task_id, token, task_type, queue, payload, headers, priority, policy, attempt = row[:9]
    return Claimed(
        task_id.decode(),
        token.decode(),
        task_type.decode(),
        queue.decode(),
        payload,
        headers_of(headers),
        priority,
        policy_of(policy),
        attempt,
        int(row[9]),
        row[10],
        int(row[11]),
    )


def expired_claim(row: Sequence[Any]) -> ExpiredClaim:
    """One claim whose lease has expired."""
    task_id, token, attempt, policy, worker_id = row
    return ExpiredClaim(task_id.decode(), token.decode(), attempt, shown_policy(policy), worker_id.decode())


def task(task_id: str, row: Sequence[Any], *, with_history: bool = True) -> Task | None:
    """One task with its history, None if it is not known."""
    if not row:
        return None
    fields = dict(zip(row[0][::2], row[0][1::2], strict=True))
    state = State(fields[b"s"].decode())
    is_claimed = state is State.CLAIMED
    return Task(
        task_id=task_id,
        type=fields[b"y"].decode(),
        queue=fields[b"q"].decode(),
        state=state,
        priority=int(fields[b"p"]),
        attempt=int(fields[b"a"]),
        deliveries=int(fields[b"d"]),
        created_at_ms=int(fields[b"c"]),
        run_at_ms=int(fields[b"r"]),
        finished_at_ms=_number(fields.get(b"f")),
        worker_id=_text(fields.get(b"w")) if is_claimed else None,
        claimed_at_ms=_number(fields.get(b"l")) if is_claimed else None,
        lease_expires_at_ms=int(float(row[2])) if is_claimed else None,
        cancel_requested=b"z" in fields,
        progress=fields.get(b"g"),
        reason=_text(fields.get(b"e")),
        request_id=_text(fields.get(b"i")),
        payload=fields[b"b"],
        headers=shown_headers(fields.get(b"h")),
        policy=shown_policy(fields.get(b"o")),
        result=fields.get(b"u") if with_history else None,
        history=_history(state, fields, row[1]) if with_history else (),
    )


def _history(state: State, fields: dict[bytes, bytes], entries: Sequence[bytes]) -> tuple[Attempt, ...]:
    ended = [_attempt(_unpack(entry)) for entry in entries]
    if state is State.SUCCEEDED:
        # The claim that succeeded is the last one, and stays in the task itself.
        ended.append(
            Attempt(
                delivery=int(fields[b"d"]),
                attempt=int(fields[b"a"]),
                worker_id=fields[b"w"].decode(),
                outcome="succeeded",
                started_at_ms=int(fields[b"l"]),
                ended_at_ms=int(fields[b"f"]),
            )
        )
    return tuple(ended[-HISTORY_LIMIT:])


def _attempt(row: Sequence[Any]) -> Attempt:
    delivery, attempt, _token, worker_id, _event, outcome, started_at_ms, ended_at_ms, _error_type, error = row
    return Attempt(
        delivery=int(delivery),
        attempt=int(attempt),
        worker_id=worker_id,
        outcome=outcome,
        started_at_ms=int(started_at_ms),
        ended_at_ms=int(ended_at_ms),
        error=failure_of(error) if error else None,
    )


def documents(kind: str, rows: Sequence[bytes]) -> list[Document]:
    """Documents, each a name and its text."""
    return [document(kind, name.decode(), text) for name, text in zip(rows[::2], rows[1::2], strict=True)]


def document(kind: str, name: str, text: bytes) -> Document:
    """The document of this text: VERSION:DUE:EXPIRES:VALUE."""
    version, due, expires, value = text.split(b":", 3)
    if kind == DISCARD:
        return discard_document(_discard(value))
    return Document(kind, name, value, int(version), _number(due or None), _number(expires or None))


def _discard(packed: bytes) -> Discard:
    row = _discard_decoder.decode(packed)
    error = failure_of(row.error) if row.error else None
    return Discard(
        task_id=row.task_id,
        type=row.type,
        queue=row.queue,
        payload=_raw_text(bytes(row.payload)),
        reason=row.reason,
        discarded_at_ms=row.discarded_at_ms,
        error=f"{error.type}: {error.message}" if error else "",
    )


def _raw_text(packed: bytes) -> bytes:
    """The bytes of a msgpack text, which need not be UTF-8."""
    lengths = {0xD9: 2, 0xDA: 3, 0xDB: 5}
    return packed[lengths.get(packed[0], 1) :]


def workers(reply: Sequence[Any]) -> list[WorkerRecord]:
    """All workers heard of, by id."""
    now_ms = int(reply[0])
    found = []
    for record, beats in reply[1:]:
        started_at_ms, seen_at_ms, expires_at_ms = _unpack(beats)
        found.append(
            msgspec.structs.replace(
                _record_decoder.decode(record),
                started_at_ms=int(started_at_ms),
                seen_at_ms=int(seen_at_ms),
                # Seen longer ahead than it may be silent: the clock was set back since.
                alive=2 * seen_at_ms - expires_at_ms <= now_ms < expires_at_ms,
            )
        )
    return sorted(found, key=lambda worker: worker.worker_id)


def counts(reply: Sequence[Any]) -> list[QueueCounts]:
    """Depths of all queues."""
    now_ms, counted, paused, oldest = int(reply[0]), reply[1], {name.decode() for name in reply[2]}, reply[3]
    steps = {queue.decode(): int(step_ms) for queue, step_ms in zip(reply[4][::2], reply[4][1::2], strict=True)}
    depths: dict[str, dict[State, int]] = {queue: {} for queue in (*paused, *steps)}
    for field, count in zip(counted[::2], counted[1::2], strict=True):
        queue, _, state = field.decode().rpartition("/")
        depths.setdefault(queue, {})[State(state)] = int(count)
    waiting: dict[str, int] = {}
    for queue, since_ms in zip(oldest[::2], oldest[1::2], strict=True):
        name = queue.decode()
        waiting[name] = max(waiting.get(name, 0), now_ms - int(since_ms))
    return [
        QueueCounts(
            queue=queue,
            paused=queue in paused,
            step_ms=steps.get(queue, AGED_STEP_MS),
            states=depths[queue],
            oldest_ready_ms=waiting.get(queue),
        )
        for queue in sorted(depths)
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)
