"""Documents over many partitions: each kind lies where `stores/documents.py` says.

A schedule lies where the tasks of its occurrences go, so that both are one transaction. One whose call moves to a queue
of another partition moves after it: the old place is told first that nothing is due any more, so that no occurrence is
made twice, and the same write made again finishes a move that was cut off.

Where a claim and the document that it guards lie in different partitions, the claim is checked first, and the document
is written then: a worker that loses its claim between the two may still be the first to store a memo. It overwrites
nothing, and what it stores has happened.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import Hold, NewTask
from holdfast.errors import BadOption, StaleMap, StoreUnavailable
from holdfast.stores.contract import Document, DocumentPage, DocumentResult, DocumentWrite
from holdfast.stores.documents import (
    DISCARD,
    MAP,
    MAP_NAME,
    MEMO,
    QUEUE,
    SCHEDULE,
    discard_of,
    map_write,
    one,
    schedule_of,
    schedule_write,
)
from holdfast.stores.sharded.pages import MergedDocuments
from holdfast.stores.sharded.router import Router

#: Kinds whose documents are spread over the partitions; those of all others are listed by partition 0.
_SPREAD: Final = frozenset({SCHEDULE, MEMO, DISCARD})
#: How often the settings of a queue are handed on again because they changed meanwhile.
_TRIES: Final = 20


class ShardedDocuments:
    """The documents of a sharded store, each in its partition."""

    def __init__(self, router: Router) -> None:
        self._router = router

    # -- reading ----------------------------------------------------------------------------------------------

    async def read(
        self, kind: str, names: Sequence[str] | None, due_within_ms: int | None, cursor: str | None, limit: int
    ) -> DocumentPage:
        """One page of the documents of a kind."""
        if kind == MAP:
            return await self._map_page(names)
        if kind == QUEUE:
            _, page = await self._router.first_there(
                lambda store: store.documents(kind, names=names, cursor=cursor, limit=limit)
            )
            return page
        if kind not in _SPREAD:
            await self._router.map()
            return await self._router.stores[0].documents(
                kind, names=names, due_within_ms=due_within_ms, cursor=cursor, limit=limit
            )
        if due_within_ms is not None:
            return await self._due(kind, names, due_within_ms, limit)
        return await self._listed(kind, names, cursor, limit)

    async def _map_page(self, names: Sequence[str] | None) -> DocumentPage:
        newest, now_ms = await self._router.newest()
        if names is not None and MAP_NAME not in names:
            return DocumentPage([], now_ms)
        return DocumentPage([Document(MAP, MAP_NAME, map_write(newest, 0).value or b"", newest.version)], now_ms)

    async def _due(self, kind: str, names: Sequence[str] | None, due_within_ms: int, limit: int) -> DocumentPage:
        current = await self._router.map()
        pages = await self._router.from_all(
            lambda store: store.documents(kind, names=names, due_within_ms=due_within_ms, limit=limit)
        )
        copies: dict[str, dict[int, Document]] = {}
        for n, page in pages.items():
            for document in page.documents:
                copies.setdefault(document.name, {})[n] = document
        chosen = [_chosen(current, places) for places in copies.values()]
        chosen.sort(key=lambda document: (document.due_at_ms or 0, document.name))
        return DocumentPage(chosen[:limit], min(page.now_ms for page in pages.values()))

    async def _listed(self, kind: str, names: Sequence[str] | None, cursor: str | None, limit: int) -> DocumentPage:
        current = await self._router.map()
        places = dict.fromkeys(range(len(self._router.stores)), names)
        if names is not None and kind != SCHEDULE:
            places = self._by_partition(current, kind, names)
        merged = MergedDocuments(
            self._router,
            _newest_first if kind == DISCARD else _by_name,
            lambda copies: _chosen(current, copies),
            lambda n, start, most: self._router.stores[n].documents(kind, names=places[n], cursor=start, limit=most),
            # What is asked for by name would be taken for unknown.
            whole=names is not None,
        )
        return await merged.page(list(places), cursor, limit)

    def _by_partition(self, current: PartitionMap, kind: str, names: Sequence[str]) -> dict[int, Sequence[str] | None]:
        """The names by the partitions that have them; one partition at least, which tells the time."""
        places: dict[int, list[str]] = {}
        for name in names:
            n = memo_home(current, name) if kind == MEMO else self._router.partition(name)
            places.setdefault(n, []).append(name)
        return dict(places) if places else {0: []}

    # -- writing ----------------------------------------------------------------------------------------------

    async def write(self, write: DocumentWrite) -> DocumentResult:
        """Executes the write in the partition where the document lies."""
        current = await self._router.map()
        check_places(current, write.tasks)
        if write.kind == MAP:
            return await self._router.change(write)
        if write.kind == SCHEDULE:
            return await self._write_schedule(current, write)
        if write.kind == QUEUE:
            return await self._write_queue(write)
        home = {MEMO: memo_home(current, write.name), DISCARD: self._router.partition(write.name)}.get(write.kind, 0)
        return await _Copies(self._router, write, await self._epochs(write)).put(home, write)

    async def _epochs(self, write: DocumentWrite) -> Sequence[int | None]:
        return [None] * len(self._router.stores) if write.epoch is None else await self._router.epochs(write.epoch)

    async def _write_queue(self, write: DocumentWrite) -> DocumentResult:
        """Partition 0 decides, then the others get what it has, again if that has changed meanwhile."""
        decider, result = await self._router.first_there(lambda store: store.put(write))
        if not result.applied:
            return result
        current = result.document
        for _ in range(_TRIES):
            copy = DocumentWrite(
                kind=QUEUE,
                name=write.name,
                value=None if current is None else current.value,
                version=0 if current is None else current.version,
            )
            others = {n: partial(store.put, copy) for n, store in enumerate(self._router.stores) if n > decider}
            await self._router.from_those_there(others, all_may_be_away=True)
            newest = await one(self._router.stores[decider], QUEUE, write.name)
            if newest == current:
                return result
            current = newest
        raise StoreUnavailable(f"the settings of queue {write.name!r} change all the time; try again")

    async def _write_schedule(self, current: PartitionMap, write: DocumentWrite) -> DocumentResult:
        """Replaces a schedule where it lies; one whose queue lies elsewhere now is moved there."""
        found = await self._router.from_all(lambda store: one(store, SCHEDULE, write.name))
        lying = {n: document for n, document in found.items() if document is not None}
        lies = _place(current, lying) if lying else None
        new = None if write.value is None else schedule_of(Document(SCHEDULE, write.name, write.value, 0))
        home = (lies or 0) if new is None else _schedule_home(current, new)
        copies = _Copies(self._router, write, await self._epochs(write))
        if new is None or lies is None or lies == home:
            result = await copies.put(home, write)
        else:
            result = await copies.move(lies, lying[lies], home, lying.get(home), new)
        if result.applied:
            await copies.clear(n for n in lying if n != home)
        return result


class _Copies:
    """The copies of one document, each in its partition, under the guards of one write."""

    def __init__(self, router: Router, write: DocumentWrite, epochs: Sequence[int | None]) -> None:
        self._router = router
        self._write = write
        self._epochs = epochs

    async def put(self, n: int, write: DocumentWrite) -> DocumentResult:
        """Executes a write in one partition; its tasks must lie there, its claim may lie in another one."""
        self._check_together(n, write.tasks)
        hold = write.hold
        if hold is not None and self._router.partition(hold.task_id) != n:
            reason = await self._objection(hold)
            if reason:
                return DocumentResult(False, await one(self._router.stores[n], write.kind, write.name), reason)
            hold = None
        guarded = replace(write, hold=hold, epoch=self._epochs[n])
        return await self._router.routed(n, lambda store, version: store.put(replace(guarded, map_version=version)))

    async def move(self, lies: int, found: Document, home: int, left: Document | None, new: Schedule) -> DocumentResult:
        """Has the old place make no occurrences any more, where the version is compared, then writes the new one."""
        still = schedule_write(self._write.name, replace(new, next_at_ms=None), 0)
        if (found.value, found.due_at_ms) != (still.value, None):
            told = replace(still, expected=self._write.expected, version=self._write.version, hold=self._write.hold)
            result = await self.put(lies, told)
            if not result.applied or result.document is None:
                return result
            found = result.document
        expected = 0 if left is None else left.version
        return await self.put(home, replace(self._write, expected=expected, version=found.version))

    async def clear(self, partitions: Iterable[int]) -> None:
        """Removes what a move, or one that was cut off, has left behind."""
        for n in partitions:
            left = await one(self._router.stores[n], self._write.kind, self._write.name)
            if left is not None:
                removal = DocumentWrite(kind=left.kind, name=left.name, value=None, expected=left.version)
                await self.put(n, removal)

    async def _objection(self, hold: Hold) -> str:
        """Why the claim is not current."""
        store = self._router.stores[self._router.partition(hold.task_id)]
        (answer,) = await store.extend([hold], 0, check_only=True)
        return answer.reason

    def _check_together(self, n: int, tasks: Sequence[NewTask]) -> None:
        if any(self._router.partition(task.task_id) != n for task in tasks):
            what = f"{self._write.kind} {self._write.name!r}"
            raise BadOption(
                f"{what} lies in partition {n}, and only tasks that lie there can be enqueued with it: make their ids "
                "with the store's placement, for its queue and a request_id"
            )


# -- where documents lie ---------------------------------------------------------------------------------------


def memo_home(current: PartitionMap, key: str) -> int:
    """The partition of a memo: among those that there were at first, so that it stays the same for ever."""
    return zlib.crc32(key.encode()) % current.base


def _schedule_home(current: PartitionMap, schedule: Schedule) -> int:
    return current.partitions(schedule.call.queue)[0]


def _place(current: PartitionMap, copies: Mapping[int, Document]) -> int:
    """The place of the copy that counts: the newest, and of two of a schedule the one that has arrived."""
    if len(copies) == 1:  # as always, but for schedules whose move was cut off
        return next(iter(copies))
    return max(copies, key=lambda n: (copies[n].version, n == _schedule_home(current, schedule_of(copies[n]))))


def _chosen(current: PartitionMap, copies: Mapping[int, Document]) -> Document:
    return copies[_place(current, copies)]


def _by_name(document: Document) -> tuple[int, str]:
    return 0, document.name


def _newest_first(document: Document) -> tuple[int, str]:
    return -discard_of(document).discarded_at_ms, document.name


def check_places(current: PartitionMap, tasks: Sequence[NewTask]) -> None:
    """Refuses a task that would lie where no worker looks for it, or where its own repeat would not meet it."""
    routes = {(task.queue, task.task_id[12:16], task.request_id is not None) for task in tasks}
    for queue, digits, has_request_id in routes:
        if not current.allows(queue, int(digits, 16), has_request_id=has_request_id):
            raise StaleMap(
                f"a task of queue {queue!r} carries partition {int(digits, 16)}, where the partition map of version "
                f"{current.version} has none of its tasks: make its id with the store's placement"
            )
