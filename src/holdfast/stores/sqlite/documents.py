"""Documents: one compare-and-set with guards, and what a written document changes elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.task import Hold
from holdfast.stores.contract import (
    MAINTENANCE_WAKEUP,
    MAX_BATCH,
    MAX_PAGE_BYTES,
    Document,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    WorkerOrders,
)
from holdfast.stores.decode import bad_cursor, failure_of
from holdfast.stores.decorate import stale_map
from holdfast.stores.documents import (
    DISCARD,
    ORDERS,
    QUEUE,
    Discard,
    QueueSettings,
    discard_document,
    orders_of,
    queue_settings_of,
)
from holdfast.stores.sqlite.enqueue import enqueue
from holdfast.stores.sqlite.transaction import SQL, Transaction

#: Where the newest of the discarded tasks come from: later than any time, behind any number.
_NEWEST: Final = (1 << 62, 1 << 62)


# -- reading -------------------------------------------------------------------------------------------------


def page(
    transaction: Transaction,
    kind: str,
    names: Sequence[str] | None,
    due_within_ms: int | None,
    cursor: str | None,
    limit: int,
) -> DocumentPage:
    """Documents of a kind, at most `limit` and `MAX_PAGE_BYTES` of them."""
    limit = max(1, min(limit, MAX_BATCH))
    bindings = {"kind": kind, "now": transaction.now_ms}
    if names is not None:
        wanted = sorted(name for name in set(names) if cursor is None or name > cursor)
        found = (transaction.row("document", {**bindings, "name": name}) for name in wanted)
        rows, cut = _fitting((row for row in found if row), limit)
    elif due_within_ms is not None:
        bindings["before"] = transaction.now_ms + due_within_ms
        rows, cut = _fitting(_walk(transaction, "due_documents", bindings), limit)[0], False
    elif kind == DISCARD:
        written_at_ms, number = _position(cursor)
        rows, cut = _fitting(_walk(transaction, "discards", {"written_at_ms": written_at_ms, "id": number}), limit)
    else:
        name = "first_documents" if cursor is None else "next_documents"
        rows, cut = _fitting(_walk(transaction, name, bindings | {"cursor": cursor}), limit)
    return DocumentPage([Document(*row[:6]) for row in rows], transaction.now_ms, _cursor(rows[-1]) if cut else None)


def _walk(transaction: Transaction, name: str, bindings: dict[str, Any]) -> Iterable[Sequence[Any]]:
    """The rows one by one: those that do not fit into the page are never read."""
    return transaction.connection.execute(SQL[name], bindings)


def _fitting(rows: Iterable[Sequence[Any]], limit: int) -> tuple[list[Sequence[Any]], bool]:
    """The rows of one page, at least one, and whether there are more."""
    found: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        size += len(row[2])
        if found and (len(found) == limit or size > MAX_PAGE_BYTES):
            return found, True
        found.append(row)
    return found, False


def _cursor(row: Sequence[Any]) -> str:
    return f"{row[6]}.{row[7]}" if row[0] == DISCARD and len(row) > 6 else row[1]


def _position(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return _NEWEST
    written_at_ms, _, number = cursor.partition(".")
    if not (cursor.isascii() and written_at_ms.isdecimal() and number.isdecimal() and len(cursor) <= 40):
        raise bad_cursor(cursor)
    return int(written_at_ms), int(number)


def orders(transaction: Transaction, worker_id: str) -> WorkerOrders | None:
    """The orders for a worker."""
    found = _one(transaction, ORDERS, worker_id)
    return None if found is None else orders_of(found.value)


def _one(transaction: Transaction, kind: str, name: str) -> Document | None:
    row = transaction.row("document", {"kind": kind, "name": name, "now": transaction.now_ms})
    return Document(*row) if row else None


# -- writing -------------------------------------------------------------------------------------------------


def check_map(transaction: Transaction, version: int, url: str) -> None:
    """Refuses a call that was routed by an older partition map."""
    current = transaction.value("map_version") or 0
    if current > version:
        raise stale_map(url, current)


def put(transaction: Transaction, write: DocumentWrite, url: str) -> DocumentResult:
    """Executes a write if its guards hold and the document has the expected version."""
    if write.epoch is not None:
        transaction.check_epoch(write.epoch)
    elif write.tasks:
        check_map(transaction, write.map_version, url)
    current = _one(transaction, write.kind, write.name)
    objection = "" if write.hold is None else _objection(transaction, write.hold)
    if objection:
        return DocumentResult(False, current, objection)
    if _is_repeat(current, write):
        return DocumentResult(True, current)
    version = 0 if current is None else current.version
    if write.expected not in (None, version):
        return DocumentResult(False, current, "version")
    new = _written(transaction, write, write.version or version + 1)
    enqueue(transaction, write.tasks)
    return DocumentResult(True, new)


def _objection(transaction: Transaction, hold: Hold) -> str:
    """Why this claim is not current, empty if it is."""
    row = transaction.row("holder", {"task_id": hold.task_id, "token": hold.token})
    if not row:
        return "unknown"
    return "" if row[0] else "stale_claim"


def _is_repeat(current: Document | None, write: DocumentWrite) -> bool:
    """Whether what is there is what an earlier write with the same content has left."""
    if write.expected == (0 if current is None else current.version):
        return False
    if current is None or write.value is None:
        return current is None and write.value is None
    version = write.version or (current.version if write.expected is None else write.expected + 1)
    content = (current.value, current.due_at_ms, current.version)
    return content == (write.value, write.due_at_ms, version)


def _written(transaction: Transaction, write: DocumentWrite, version: int) -> Document | None:
    """Replaces or removes the document, with the effects of its kind; the document as it is now."""
    new = None
    if write.value is not None:
        expires_at_ms = None if write.ttl_ms is None else transaction.now_ms + write.ttl_ms
        new = Document(write.kind, write.name, write.value, version, write.due_at_ms, expires_at_ms)
    if write.kind == QUEUE:
        _set_queue(transaction, write.name, queue_settings_of(new))
    if new is None:
        transaction.run("drop_document", {"kind": write.kind, "name": write.name})
    else:
        _notify_if_sooner(transaction, new)
        transaction.run("put_document", {**msgspec.structs.asdict(new), "now": transaction.now_ms})
    return new


def _notify_if_sooner(transaction: Transaction, new: Document) -> None:
    if new.due_at_ms is not None:
        earliest = transaction.value("next_due_document", (new.kind,))
        if earliest is None or new.due_at_ms < earliest:
            transaction.wakeups.add(MAINTENANCE_WAKEUP)


def _set_queue(transaction: Transaction, queue: str, settings: QueueSettings) -> None:
    """Has enqueue and reserve go by the settings; with a new step the waiting tasks get their new places."""
    default = QueueSettings()
    paused, step_ms = transaction.row("queue", (queue,)) or (default.paused, default.step_ms)
    if settings == default:
        transaction.run("drop_queue", (queue,))
    else:
        transaction.run("put_queue", {"queue": queue, **msgspec.structs.asdict(settings)})
    if settings.step_ms != step_ms:
        transaction.run("rank_again", {"queue": queue, "step_ms": settings.step_ms})
    if paused and not settings.paused:
        transaction.wakeups.add(queue)


# -- what the store writes and deletes itself ----------------------------------------------------------------


def record_discard(transaction: Transaction, seq: int, reason: str) -> None:
    """Records a task that is about to be deleted."""
    task_id, task_type, queue, payload, error = transaction.row("discarded", (seq,))
    discard = Discard(
        task_id=task_id,
        type=task_type,
        queue=queue,
        payload=payload,
        reason=reason,
        discarded_at_ms=transaction.now_ms,
        error=_one_line(error),
    )
    new = msgspec.structs.asdict(discard_document(discard))
    transaction.run("put_document", {**new, "now": transaction.now_ms})


def _one_line(error: bytes | None) -> str:
    if error is None:
        return ""
    failure = failure_of(error)
    return f"{failure.type}: {failure.message}"


def prune(transaction: Transaction, limit: int) -> int:
    """Deletes expired documents; how many."""
    transaction.run("prune_documents", {"now": transaction.now_ms, "limit": limit})
    return transaction.connection.changes()
