"""Our records as the functions take them: columns, so that a batch travels as a few arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.core.lifecycle import Change, Event
from holdfast.core.policy import DEFAULT_POLICY, RunPolicy
from holdfast.core.task import Hold, NewTask
from holdfast.stores.postgres.arrays import Blobs, Texts, blobs, texts, uuids

_encode = msgspec.json.Encoder().encode
#: Stands for an id that cannot be one: no task has it.
_NOBODY: Final = "0" * 32
_HEX: Final = frozenset("0123456789abcdef")
_NO_ACKS: Final[tuple[Any, ...]] = (None, None, None)
_NO_OTHERS: Final[tuple[Any, ...]] = (None, None)


def task_columns(tasks: Sequence[NewTask]) -> tuple[Any, ...]:
    """Tasks as `enqueue` takes them: what is the same for many travels once, as a shape."""
    shapes: dict[tuple[Any, ...], int] = {}
    shape_of = [
        shapes.setdefault((task.queue, task.type, task.priority, task.delay_ms, task.run_at_ms), len(shapes) + 1)
        for task in tasks
    ]
    queues, types, priorities, waits, run_ats = map(list, zip(*shapes, strict=True))
    requests = [task.request_id for task in tasks]
    headers = [headers_text(task.headers) for task in tasks]
    policies = [policy_text(task.policy) for task in tasks]
    return (
        uuids([task.task_id for task in tasks]),
        blobs([task.payload for task in tasks]),
        _texts(headers),
        _texts(policies),
        shape_of if len(shapes) > 1 else None,
        queues,
        types,
        priorities,
        waits,
        run_ats,
        _texts(requests),
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
    others = [(n, each) for n, each in enumerate(changes) if n not in apart]
    rows = _encode([_other(n, each) for n, each in others]).decode()
    return Sent((*columns, rows, _blobs([each.result for _, each in others])), together)


def _is_plain_ack(change: Change) -> bool:
    return change.event is Event.ACK and change.token is not None and change.epoch is None and not change.lapsed_only


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
        "lapsed_only": change.lapsed_only,
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
    """The id, or one that nobody has if it cannot be one."""
    return task_id if len(task_id) == 32 and _HEX.issuperset(task_id) else _NOBODY


def plain_text(text: str | None) -> str | None:
    """The text without zero characters, which PostgreSQL has no way to keep."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if text and "\0" in text else text
