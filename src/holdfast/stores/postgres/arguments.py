"""Our records as the functions take them: columns, so that a batch travels as a few arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.core.lifecycle import Change, Event
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.core.task import Hold, NewTask
from holdfast.stores.contract import DocumentWrite, Reserve
from holdfast.stores.postgres import encoding
from holdfast.stores.postgres.encoding import Blobs, Composite, Texts, blobs, composite, int4, int8, text, texts, uuids

_encode = msgspec.json.Encoder().encode
#: Stands for an id that cannot be one: no task has it.
_NO_TASK: Final = "0" * 32
_HEX: Final = frozenset("0123456789abcdef")
_NO_ACKS: Final[tuple[Any, ...]] = (None, None, None)
_NO_OTHERS: Final[tuple[Any, ...]] = (None, None)


def batch(tasks: Sequence[NewTask]) -> Composite | None:
    """Tasks as `enqueue` takes them: what is the same for many travels once, as a shape. None for none."""
    if not tasks:
        return None
    shapes: dict[tuple[Any, ...], int] = {}
    shape_of = [
        shapes.setdefault((task.queue, task.type, task.priority, task.delay_ms, task.run_at_ms), len(shapes) + 1)
        for task in tasks
    ]
    queues, types, priorities, waits, run_ats = zip(*shapes, strict=True)
    return composite(
        encoding.uuid_array(uuids([task.task_id for task in tasks])),
        encoding.blob_array(blobs([task.payload for task in tasks])),
        encoding.text_array(_texts([headers_text(task.headers) for task in tasks])),
        encoding.text_array(_texts([policy_text(task.policy) for task in tasks])),
        encoding.int4_array(shape_of if len(shapes) > 1 else None),
        encoding.text_array(texts(queues)),
        encoding.text_array(texts(types)),
        encoding.int4_array(priorities),
        encoding.int8_array(waits),
        encoding.int8_array(run_ats),
        encoding.text_array(_texts([task.request_id for task in tasks])),
    )


def document_write(write: DocumentWrite) -> Composite:
    """A write as `put` takes it."""
    hold = write.hold
    return composite(
        text(plain_text(write.kind)),
        text(plain_text(write.name)),
        encoding.blob(write.value),
        int8(write.expected),
        int8(write.version),
        int8(write.due_at_ms),
        int8(write.ttl_ms),
        int8(write.epoch),
        encoding.uuid(None if hold is None else known_id(hold.task_id)),
        text(None if hold is None else plain_text(hold.token)),
        int8(write.map_version),
    )


def reservation(request: Reserve, call: str | None) -> Composite:
    """A worker's request as `hand_over` takes it."""
    return composite(
        text(request.claim_id),
        text(request.worker_id),
        text(call),
        encoding.text_array(texts([share.queue for share in request.shares])),
        encoding.int4_array([share.limit for share in request.shares]),
        int4(request.max_tasks),
        int8(request.max_bytes),
        int8(request.lease_ms),
        encoding.text_array(None if request.types is None else texts(list(request.types))),
        int8(request.map_version),
    )


def headers_text(headers: dict[str, str]) -> str | None:
    """Headers as their column has them."""
    return _encode(headers).decode() if headers else None


def policy_text(policy: RunPolicy) -> str | None:
    """A policy as its column has it."""
    return None if policy is DEFAULT_POLICY or policy == DEFAULT_POLICY else _encode(policy).decode()


def _texts(column: list[str | None]) -> Texts | None:
    return texts(column) if any(value is not None for value in column) else None


def _blobs(column: list[bytes | None]) -> Blobs | None:
    return blobs(column) if any(value is not None for value in column) else None


class Sent(NamedTuple):
    """Changes on their way: the columns, and which place of the caller's list each ack has."""

    columns: tuple[Any, ...]
    ack_places: list[int]

    def settlement(self) -> Composite | None:
        """As `hand_over` takes them; None for none."""
        ids, tokens, results, others, other_results = self.columns
        if ids is None and others is None:
            return None
        return composite(
            encoding.uuid_array(ids),
            encoding.text_array(tokens),
            encoding.blob_array(results),
            encoding.json_text(others),
            encoding.blob_array(other_results),
        )


def change_columns(changes: Sequence[Change]) -> Sent:
    """Changes as `apply` and `reserve` take them: plain acks together, the others in order."""
    if not changes:
        return Sent((*_NO_ACKS, *_NO_OTHERS), [])
    ids = [change.task_id for change in changes]
    together: list[int] = []
    if len(set(ids)) == len(ids):
        # Of different tasks, so their order does not matter; by id, so that two batches never wait for each other.
        together = sorted((n for n, each in enumerate(changes) if _is_plain_ack(each)), key=ids.__getitem__)
    acks = [changes[n] for n in together]
    columns = _ack_columns(acks) if acks else _NO_ACKS
    if len(acks) == len(changes):
        return Sent((*columns, *_NO_OTHERS), together)
    apart = set(together)
    # By id too: all calls lock in one order. Changes of one task stay in the order in which they were sent.
    others = sorted(((n, each) for n, each in enumerate(changes) if n not in apart), key=lambda other: other[1].task_id)
    rows = _encode([_other(n, each) for n, each in others]).decode()
    return Sent((*columns, rows, _blobs([each.result for _, each in others])), together)


def _is_plain_ack(change: Change) -> bool:
    return change.event is Event.ACK and change.token is not None and change.epoch is None and not change.expired_only


def _ack_columns(acks: Sequence[Change]) -> tuple[Any, ...]:
    tokens = [plain_text(ack.token) for ack in acks]
    return (
        uuids([known_id(ack.task_id) for ack in acks]),
        # Mostly those of one reserve call, in which all first deliveries have the same token.
        texts(tokens[:1] if len(set(tokens)) == 1 else tokens),
        _blobs([ack.result for ack in acks]),
    )


def _other(place: int, change: Change) -> dict[str, Any]:
    return {
        "place": place,
        "event": change.event.value,
        "task_id": known_id(change.task_id),
        "token": plain_text(change.token),
        "expired_only": change.expired_only,
        "epoch": change.epoch,
        "delay_ms": change.delay_ms,
        "outcome": plain_text(change.outcome),
        "error_type": plain_text(change.error.type) if change.error else None,
        "error": _encode(change.error).decode() if change.error else None,
        "reason": plain_text(change.reason),
        "priority": change.priority,
    }


def hold_columns(holds: Sequence[Hold]) -> tuple[Any, ...]:
    """Holds as `extend` takes them."""
    return (
        uuids([known_id(hold.task_id) for hold in holds]),
        texts([plain_text(hold.token) for hold in holds]),
        _blobs([hold.progress for hold in holds]),
    )


def known_id(task_id: str) -> str:
    """The id, or one that no task has if it cannot be one."""
    return task_id if len(task_id) == 32 and _HEX.issuperset(task_id) else _NO_TASK


def plain_text(text: str | None) -> str | None:
    """The text without zero characters, which PostgreSQL has no way to keep."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if text and "\0" in text else text
