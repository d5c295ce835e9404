"""Documents over HTTP: which scope each kind needs, and what of it a token may see or write.

| kind         | read                                  | write                                                        |
|--------------|---------------------------------------|--------------------------------------------------------------|
| `schedule`   | read; without secrets                 | manage; with an epoch admin                                  |
| `queue`      | read                                  | manage                                                       |
| `orders`     | manage                                | manage                                                       |
| `discard`    | read; without secrets                 | admin                                                        |
| `memo`       | work:*, by its key; admin for a list  | work:*, a new one, by a current claim; admin for all else    |
| `map`        | any token; the addresses need read    | admin                                                        |
| `type`       | read; any by name, of its own queues  | work:*                                                       |
| all others   | admin                                 | admin                                                        |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.declared import DECLARED_TTL_MS, MAX_DECLARED_BYTES
from holdfast.core.names import check_document, check_key, check_queue, check_schedule, check_type
from holdfast.core.priority import STRICT_STEP_MS, check_priority
from holdfast.core.schedule.decide import checked
from holdfast.core.schedule.record import Schedule
from holdfast.errors import BadName, BadOption
from holdfast.server import permits
from holdfast.server.auth import ANYBODY_KNOWN, Scope
from holdfast.server.checks import (
    check_headers,
    check_holds,
    check_id,
    check_number,
    check_numbers,
    check_policy,
    check_size,
    check_task,
    check_text,
)
from holdfast.server.rendering import PAGE_BYTES, discard_without_secrets, schedule_without_secrets
from holdfast.server.routing import Call, Routes
from holdfast.server.store_rpc import answers
from holdfast.stores.contract import MAX_BATCH, Document, DocumentPage, DocumentResult, DocumentWrite
from holdfast.stores.documents import (
    DISCARD,
    MAP,
    MAP_NAME,
    MEMO,
    ORDERS,
    QUEUE,
    SCHEDULE,
    TYPE,
    discard_document,
    discard_of,
    map_of,
    map_write,
    orders_of,
    queue_settings_of,
    schedule_of,
    schedule_write,
    type_of,
)
from holdfast.stores.remote import calls
from holdfast.stores.remote.limits import LONGEST_CURSOR, MAX_SCHEDULES

T = TypeVar("T")

routes = Routes("store")

_READ_SCOPES: Final = {
    SCHEDULE: Scope.READ,
    QUEUE: Scope.READ,
    DISCARD: Scope.READ,
    ORDERS: Scope.MANAGE,
    TYPE: Scope.READ,
}
_WRITE_SCOPES: Final = {SCHEDULE: Scope.MANAGE, QUEUE: Scope.MANAGE, ORDERS: Scope.MANAGE}


@answers(calls.DOCUMENTS, ANYBODY_KNOWN, routes)
async def _documents(call: Call, request: calls.Documents) -> DocumentPage:
    """Documents of a kind, as far as this token may see them."""
    kind = check_document(request.kind)
    _demand_reading(call, kind, request.names)
    _check_names(kind, request.names or ())
    if request.due_within_ms is not None:
        check_number(request.due_within_ms, "due_within_ms")
    if request.cursor is not None and (len(request.cursor) > LONGEST_CURSOR or not request.cursor.isprintable()):
        raise BadOption("invalid cursor; pass the one returned with the previous page")
    most = MAX_BATCH if request.due_within_ms is None else MAX_SCHEDULES
    if kind != MAP:
        await call.answer_share.wait(PAGE_BYTES)
    page = await call.store.documents(
        kind,
        names=request.names,
        due_within_ms=request.due_within_ms,
        cursor=request.cursor,
        limit=check_number(request.limit, "limit", most),
    )
    shown = [_shown(call, document) for document in page.documents if _is_visible(call, document)]
    return DocumentPage(shown, page.now_ms, page.cursor)


@answers(calls.PUT, ANYBODY_KNOWN, routes)
async def _put(call: Call, write: DocumentWrite) -> DocumentResult:
    """Replaces, creates or removes a document, and enqueues tasks with it."""
    check_document(write.kind)
    _demand_writing(call, write)
    _check_names(write.kind, [write.name])
    _check_write(call, write)
    result = await call.store.put(_CHECKED.get(write.kind, _as_sent)(call, write))
    shown = None if result.document is None else _shown(call, result.document)
    return DocumentResult(result.applied, shown, result.reason)


# -- who may -----------------------------------------------------------------------------------------------------


def _demand_reading(call: Call, kind: str, names: Sequence[str] | None) -> None:
    if kind == MEMO and names is not None:
        permits.demand_everywhere(call, Scope.WORK, "once()")
    elif kind != MAP and (kind != TYPE or names is None):
        permits.demand_scope(call, _READ_SCOPES.get(kind, Scope.ADMIN), f"to read documents of kind {kind}")


def _demand_writing(call: Call, write: DocumentWrite) -> None:
    """Refuses a write that is not for this token; a memo of `once` is written once, and by the claim of its task."""
    what = f"to write documents of kind {write.kind}"
    if write.kind == MEMO:
        permits.demand_everywhere(call, Scope.WORK, "once()")
        if write.hold is None or write.expected != 0 or write.value is None or write.ttl_ms is None:
            permits.demand_scope(call, Scope.ADMIN, "to replace a memo, or to write one without a claim or an end")
    elif write.kind == TYPE:
        permits.demand_everywhere(call, Scope.WORK, "to publish task types")
    else:
        permits.demand_scope(call, _WRITE_SCOPES.get(write.kind, Scope.ADMIN), what)
    if write.epoch is not None:
        permits.demand_scope(call, Scope.ADMIN, "a write by the leader of the maintenance")
    if write.tasks and write.kind != SCHEDULE:
        permits.demand_scope(call, Scope.ADMIN, "to enqueue tasks with such a document")


# -- what may be sent --------------------------------------------------------------------------------------------


def _check_names(kind: str, names: Sequence[str]) -> None:
    check_size(names, "names")
    for name in names:
        if kind == MAP:
            if name != MAP_NAME:
                raise BadName(f"document name {name!r:.80} is refused: the map has an empty name")
        elif kind == ORDERS:
            check_id(name, "worker_id")
        else:
            {SCHEDULE: check_schedule, QUEUE: check_queue, MEMO: check_key, TYPE: check_type}.get(kind, check_document)(
                name
            )


def _check_write(call: Call, write: DocumentWrite) -> None:
    max_payload = call.server.settings.max_payload_bytes
    check_size(write.tasks, "tasks")
    for task in write.tasks:
        check_task(task, max_payload)
    if write.hold is not None:
        check_holds([write.hold], max_payload)
    if write.ttl_ms is not None:
        check_number(write.ttl_ms, "ttl_ms")
    check_numbers(write)
    if write.kind != SCHEDULE:  # whose parts have limits of their own
        check_size(write.value or b"", "bytes of the document", max_payload)


def _as_sent(call: Call, write: DocumentWrite) -> DocumentWrite:
    del call
    return write


def _checked_schedule(call: Call, write: DocumentWrite) -> DocumentWrite:
    """The write as `schedule_write` makes it from the schedule: what is due is what the schedule says."""
    new = None if write.value is None else _decoded(schedule_of, write)
    if new is not None:
        _check_schedule(new, call.server.settings.max_payload_bytes)
        if new.name != write.name:
            raise BadName(f"schedule name {write.name!r:.80} is refused: the schedule in it has another one")
    made = schedule_write(write.name, new, 0, write.tasks, write.epoch, write.map_version)
    return replace(made, expected=write.expected, version=write.version, hold=write.hold)


def _check_schedule(schedule: Schedule, max_payload: int) -> None:
    call = schedule.call
    check_numbers(schedule)
    checked(schedule.timing)
    check_queue(call.queue)
    check_type(call.type)
    check_headers(call.headers)
    check_policy(call.policy)
    check_size(call.payload, "bytes of the arguments", max_payload)
    for text in (schedule.source, schedule.declared, schedule.skipped_because):
        check_text(text, "schedule")


def _checked_queue(call: Call, write: DocumentWrite) -> DocumentWrite:
    del call
    settings = None if write.value is None else _decoded(queue_settings_of, write)
    if settings is not None:
        check_number(settings.step_ms, "step_ms", STRICT_STEP_MS, 1)
    return _plain(write, None if settings is None else msgspec.json.encode(settings))


def _checked_orders(call: Call, write: DocumentWrite) -> DocumentWrite:
    del call
    orders = None if write.value is None else _decoded(lambda document: orders_of(document.value), write)
    if orders is not None and orders.concurrency is not None:
        check_number(orders.concurrency, "concurrency", MAX_BATCH)
    return _plain(write, None if orders is None else msgspec.json.encode(orders))


def _checked_map(call: Call, write: DocumentWrite) -> DocumentWrite:
    del call
    if write.value is None:
        raise BadOption("the partition map cannot be removed")
    new = _decoded(map_of, write)
    check_numbers(new)
    return _plain(replace(write, version=new.version), map_write(new, 0).value)


def _checked_type(call: Call, write: DocumentWrite) -> DocumentWrite:
    del call
    if write.value is None:
        return _plain(write, None)
    check_size(write.value, "bytes of the task type", MAX_DECLARED_BYTES)
    new = _decoded(type_of, write)
    if new.name != write.name:
        raise BadName(f"task type {write.name!r:.80} is refused: the type in it has another name")
    check_queue(new.queue)
    check_priority(new.priority)
    check_policy(new.policy)
    return replace(
        _plain(write, msgspec.json.encode(new)), ttl_ms=min(write.ttl_ms or DECLARED_TTL_MS, DECLARED_TTL_MS)
    )


_CHECKED: Final[dict[str, Callable[[Call, DocumentWrite], DocumentWrite]]] = {
    SCHEDULE: _checked_schedule,
    QUEUE: _checked_queue,
    ORDERS: _checked_orders,
    MAP: _checked_map,
    TYPE: _checked_type,
}


def _plain(write: DocumentWrite, value: bytes | None) -> DocumentWrite:
    """A write of a document that neither expires nor is due."""
    return replace(write, value=value, due_at_ms=None, ttl_ms=None)


def _decoded(decode: Callable[[Document], T], write: DocumentWrite) -> T:
    try:
        return decode(Document(write.kind, write.name, write.value or b"", 0))
    except msgspec.DecodeError as error:
        raise BadOption(f"value: {error} in the document of kind {write.kind}") from None


# -- what is shown -----------------------------------------------------------------------------------------------


def _is_visible(call: Call, document: Document) -> bool:
    """Whether the caller may see it: the types of the queues in which it may enqueue or run tasks, all else."""
    caller = call.caller
    if document.kind != TYPE or caller.may(Scope.READ):
        return True
    queue = type_of(document).queue
    return caller.may(Scope.ENQUEUE, queue) or caller.may(Scope.WORK, queue)


def _shown(call: Call, document: Document) -> Document:
    """The document as this caller may see it."""
    caller = call.caller
    if document.kind == SCHEDULE:
        schedule = schedule_without_secrets(schedule_of(document), caller)
        return replace(document, value=msgspec.json.encode(schedule))
    if document.kind == DISCARD:
        return discard_document(discard_without_secrets(discard_of(document), caller))
    if document.kind == MAP and not caller.may(Scope.READ):
        found = map_of(document)
        return replace(document, value=msgspec.json.encode(replace(found, shards=("",) * len(found.shards))))
    return document
