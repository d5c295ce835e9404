"""What the kinds of documents hold, and the calls that read and write them as values of their own type.

| kind       | name         | value              | lives in                           | pruned                        |
|------------|--------------|--------------------|------------------------------------|-------------------------------|
| `schedule` | of schedule  | `Schedule`         | first partition of its queue       | when removed                  |
| `queue`    | of queue     | `QueueSettings`    | every partition, 0 decides         | when it holds only defaults   |
| `map`      | `""`         | `PartitionMap`     | every partition, 0 decides         | never                         |
| `memo`     | key          | bytes              | by its key                         | when expired                  |
| `orders`   | of worker    | `WorkerOrders`     | partition 0, beside the worker     | with the worker's record      |
| `discard`  | task id      | `Discard`          | partition of the task              | after `Retention.discards_ms` |
| `token`    | of token     | `AccessToken`      | partition 0                        | when removed                  |
| `type`     | of task type | `DeclaredType`     | partition 0                        | when expired                  |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from holdfast.core.declared import DECLARED_TTL_MS, DeclaredType
from holdfast.core.partitions import PartitionMap
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import Hold, NewTask
from holdfast.errors import StaleMap, StoreUnavailable
from holdfast.stores.contract import MAX_BATCH, Document, DocumentWrite, Store, WorkerOrders

SCHEDULE: Final = "schedule"
QUEUE: Final = "queue"
MAP: Final = "map"
MEMO: Final = "memo"
ORDERS: Final = "orders"
DISCARD: Final = "discard"
TYPE: Final = "type"

#: The one document of kind `map` in a partition.
MAP_NAME: Final = ""
#: How often a change of a queue's settings is tried again because of another one made at the same time.
_TRIES: Final = 20


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator has set for one queue."""

    paused: bool = False
    #: What each level of priority is worth in waiting: core/priority.py.
    step_ms: int = AGED_STEP_MS


class Discard(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a discarded task."""

    task_id: str
    type: str
    queue: str
    payload: bytes
    reason: str
    discarded_at_ms: int
    error: str = ""


class DueSchedules(msgspec.Struct, frozen=True):
    """Schedules by the time of their next occurrence, and the store's time."""

    now_ms: int
    schedules: list[Schedule]


class Memo(msgspec.Struct, frozen=True):
    """What is stored under a key now, None for nothing, and why the caller's claim is not current if it is not."""

    value: bytes | None
    reason: str = ""


_schedule_decoder = msgspec.json.Decoder(Schedule)
_queue_decoder = msgspec.json.Decoder(QueueSettings)
_map_decoder = msgspec.json.Decoder(PartitionMap)
_orders_decoder = msgspec.json.Decoder(WorkerOrders)
_type_decoder = msgspec.json.Decoder(DeclaredType)
_discard_decoder = msgspec.msgpack.Decoder(Discard)


# -- any kind ------------------------------------------------------------------------------------------------


async def one(store: Store, kind: str, name: str) -> Document | None:
    """The document of this kind and name; None if there is none."""
    found = (await store.documents(kind, names=[name])).documents
    return found[0] if found else None


async def every(store: Store, kind: str, *, page: int = MAX_BATCH) -> AsyncIterator[Document]:
    """All documents of a kind, page by page."""
    cursor: str | None = None
    while True:
        found = await store.documents(kind, cursor=cursor, limit=page)
        for document in found.documents:
            yield document
        cursor = found.cursor
        if cursor is None:
            return


async def put(store: Store, kind: str, name: str, value: bytes | None, expected: int) -> bool:
    """Replaces a document (with None: removes it) if it has this version, 0 standing for no such document."""
    return (await store.put(DocumentWrite(kind=kind, name=name, value=value, expected=expected))).applied


# -- schedules -----------------------------------------------------------------------------------------------


def schedule_of(document: Document) -> Schedule:
    """The schedule that a document holds."""
    return _schedule_decoder.decode(document.value)


def schedule_write(
    name: str,
    new: Schedule | None,
    expected: int,
    tasks: Sequence[NewTask] = (),
    epoch: int | None = None,
    map_version: int = 0,
) -> DocumentWrite:
    """The write that replaces a schedule, or with None removes it, and enqueues the tasks of its occurrences."""
    return DocumentWrite(
        kind=SCHEDULE,
        name=name,
        value=None if new is None else msgspec.json.encode(new),
        due_at_ms=None if new is None else new.next_at_ms,
        expected=expected,
        tasks=tasks,
        epoch=epoch,
        map_version=map_version,
    )


async def put_schedule(
    store: Store,
    name: str,
    new: Schedule | None,
    expected: int,
    tasks: Sequence[NewTask] = (),
    epoch: int | None = None,
    map_version: int = 0,
) -> bool:
    """Replaces or removes a schedule of this version together with its tasks; `new.version` is `expected` + 1."""
    return (await store.put(schedule_write(name, new, expected, tasks, epoch, map_version))).applied


async def schedule(store: Store, name: str) -> Schedule | None:
    """The schedule of this name; None if there is none."""
    document = await one(store, SCHEDULE, name)
    return None if document is None else schedule_of(document)


async def schedules(store: Store, due_within_ms: int | None = None, limit: int = MAX_BATCH) -> DueSchedules:
    """Those whose next occurrence comes within that time, or up to `limit` of all, the soonest first."""
    if due_within_ms is not None:
        page = await store.documents(SCHEDULE, due_within_ms=due_within_ms, limit=limit)
        return DueSchedules(page.now_ms, [schedule_of(document) for document in page.documents])
    found: list[Schedule] = []
    cursor: str | None = None
    while True:
        page = await store.documents(SCHEDULE, cursor=cursor, limit=min(limit - len(found), MAX_BATCH))
        found += [schedule_of(document) for document in page.documents]
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return DueSchedules(page.now_ms, sorted(found, key=_soonest))


def _soonest(schedule: Schedule) -> tuple[bool, int, str]:
    return schedule.next_at_ms is None, schedule.next_at_ms or 0, schedule.name


# -- queues --------------------------------------------------------------------------------------------------


def queue_settings_of(document: Document | None) -> QueueSettings:
    """The settings that a document holds; the defaults without one."""
    return QueueSettings() if document is None else _queue_decoder.decode(document.value)


async def pause(store: Store, queue: str, paused: bool) -> None:
    """Stops or resumes handing out tasks of this queue."""
    await _set(store, queue, paused=paused)


async def set_step(store: Store, queue: str, step_ms: int) -> None:
    """Makes each level of priority worth this much waiting in this queue, for the tasks that wait there too."""
    await _set(store, queue, step_ms=step_ms)


async def _set(store: Store, queue: str, **settings: object) -> None:
    for _ in range(_TRIES):
        document = await one(store, QUEUE, queue)
        new = msgspec.structs.replace(queue_settings_of(document), **settings)
        write = DocumentWrite(
            kind=QUEUE,
            name=queue,
            value=None if new == QueueSettings() else msgspec.json.encode(new),
            expected=0 if document is None else document.version,
        )
        if (await store.put(write)).applied:
            return
    raise StoreUnavailable(f"{store.url}: the settings of queue {queue!r} are changed all the time; try again")


# -- memos ---------------------------------------------------------------------------------------------------


async def keep(store: Store, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Memo:
    """Stores the value of a memo for `ttl_ms` if the claim is current and the key is free; gives what is there.

    The first value stays, for the time that it was given. The key is one for all tasks. Without a hold no claim is
    checked: for callers that have done so where the claim is.
    """
    write = DocumentWrite(kind=MEMO, name=key, value=value, expected=0, ttl_ms=ttl_ms, hold=hold)
    result = await store.put(write)
    return Memo(
        None if result.document is None else result.document.value, "" if result.reason == "version" else result.reason
    )


async def kept(store: Store, key: str) -> bytes | None:
    """The value of a memo; None if there is none, or it has expired."""
    document = await one(store, MEMO, key)
    return None if document is None else document.value


# -- orders for workers --------------------------------------------------------------------------------------


def orders_of(value: bytes | None) -> WorkerOrders | None:
    """The orders that the value of a document holds."""
    return None if value is None else _orders_decoder.decode(value)


async def order(store: Store, worker_id: str, orders: WorkerOrders) -> None:
    """Leaves orders for a worker, in place of those that it had; they last as long as its record."""
    await store.put(DocumentWrite(kind=ORDERS, name=worker_id, value=msgspec.json.encode(orders)))


async def change_orders(store: Store, worker_id: str, change: Callable[[WorkerOrders], WorkerOrders]) -> None:
    """Changes a part of the orders of a worker, and leaves the others as they are."""
    while True:
        before = await one(store, ORDERS, worker_id)
        orders = change((orders_of(before.value) if before else None) or WorkerOrders())
        expected = before.version if before else 0
        write = DocumentWrite(kind=ORDERS, name=worker_id, value=msgspec.json.encode(orders), expected=expected)
        if (await store.put(write)).applied:
            return


# -- task types ----------------------------------------------------------------------------------------------


def type_of(document: Document) -> DeclaredType:
    """The task type that a document holds."""
    return _type_decoder.decode(document.value)


async def declared_type(store: Store, name: str) -> DeclaredType | None:
    """The task type of this name, as a worker has published it; None if none has."""
    document = await one(store, TYPE, name)
    return None if document is None else type_of(document)


async def publish_types(store: Store, types: Sequence[DeclaredType]) -> int:
    """Publishes task types for `DECLARED_TTL_MS`; those that are there already, and not soon to expire, cost a read.

    How many were written.
    """
    written = 0
    for first in range(0, len(types), MAX_BATCH):
        batch = types[first : first + MAX_BATCH]
        page = await store.documents(TYPE, names=[each.name for each in batch])
        stale_ms = page.now_ms + DECLARED_TTL_MS // 2
        known = {found.name: found.value for found in page.documents if (found.expires_at_ms or 0) > stale_ms}
        for each in batch:
            value = msgspec.json.encode(each)
            if known.get(each.name) != value:
                await store.put(DocumentWrite(kind=TYPE, name=each.name, value=value, ttl_ms=DECLARED_TTL_MS))
                written += 1
    return written


# -- partition map -------------------------------------------------------------------------------------------


def map_of(document: Document | None) -> PartitionMap:
    """The map that a document holds; without one, that of a store that was never divided."""
    return PartitionMap() if document is None else _map_decoder.decode(document.value)


def map_write(new: PartitionMap, expected: int) -> DocumentWrite:
    """The write that replaces the map of this version."""
    return DocumentWrite(
        kind=MAP, name=MAP_NAME, value=msgspec.json.encode(new), expected=expected, version=new.version
    )


async def partition_map(store: Store) -> PartitionMap:
    """The partition map as this store keeps it; version 0 if it was never divided."""
    return map_of(await one(store, MAP, MAP_NAME))


async def put_partition_map(store: Store, new: PartitionMap) -> PartitionMap:
    """Stores a new map if it `follows` the current one; the same again is a success, else `StaleMap`."""
    current = await partition_map(store)
    if new == current == PartitionMap():
        return current
    if new == current or new.follows(current):
        # Also the same again: an earlier call may have failed only because too few replicas had confirmed it.
        result = await store.put(map_write(new, current.version))
        if result.applied:
            return new
        current = map_of(result.document)
    raise StaleMap(f"version {new.version} of the partition map does not follow version {current.version}")


# -- discarded tasks -----------------------------------------------------------------------------------------


def discard_document(discard: Discard) -> Document:
    """The document of a discarded task, as a store shows it."""
    return Document(DISCARD, discard.task_id, msgspec.msgpack.encode(discard), 1)


def discard_of(document: Document) -> Discard:
    """The record that a document holds."""
    return _discard_decoder.decode(document.value)


async def discards(store: Store, limit: int = 100) -> list[Discard]:
    """The newest records of discarded tasks."""
    found: list[Discard] = []
    cursor: str | None = None
    while True:
        page = await store.documents(DISCARD, cursor=cursor, limit=min(limit - len(found), MAX_BATCH))
        found += [discard_of(document) for document in page.documents]
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return found
