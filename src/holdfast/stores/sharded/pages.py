"""Pages over many partitions: what each of them lists, merged in one order, with one cursor for all of them."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.task import Task
from holdfast.stores.contract import MAX_BATCH, MAX_PAGE_BYTES, Document, DocumentPage, Page, Query
from holdfast.stores.decode import bad_cursor
from holdfast.stores.sharded.gather import all_of
from holdfast.stores.sharded.router import Router

#: Where the next page begins in one partition: None for its start, False when it has no more.
Place = str | bool | None
_places_decoder = msgspec.json.Decoder(list[str | bool | None])

# -- tasks ---------------------------------------------------------------------------------------------------


async def find(router: Router, query: Query) -> Page:
    """One page, newest first. Within a partition the order is exact, across them it is by the time of recording."""
    places = _read(query.cursor, len(router.stores))
    limit = max(1, min(query.limit, MAX_BATCH))
    asked = {n: replace(query, cursor=place, limit=limit) for n, place in enumerate(places) if place is not False}
    pages = await router.from_those_there({n: partial(router.stores[n].find, each) for n, each in asked.items()})
    chosen = list(islice(_newest_first({n: page.tasks for n, page in pages.items()}), limit))
    for n, page in pages.items():
        if not page.tasks:
            places[n] = page.cursor or False
    shown = dict.fromkeys(pages, 0)
    after: list[str] = []
    for n, _ in chosen:
        shown[n] += 1
        page = pages[n]
        places[n] = page.after[shown[n] - 1] if shown[n] < len(page.tasks) else page.cursor or False
        after.append(_write(places))
    # A partition that is left out keeps its place, for the case that it is back when the next page is asked for.
    goes_on = any(places[n] is not False for n in pages)
    return Page([task for _, task in chosen], _write(places) if goes_on else None, after)


def _newest_first(tasks: dict[int, list[Task]]) -> Iterator[tuple[int, Task]]:
    """The tasks of all partitions, those of each in the order in which they came."""

    def tagged(n: int) -> Iterator[tuple[int, Task]]:
        return ((n, task) for task in tasks[n])

    return heapq.merge(*map(tagged, tasks), key=lambda pair: _age(pair[1]), reverse=True)


def _age(task: Task) -> tuple[int, str, str]:
    """When it was recorded; within a millisecond, when its id was made: the partition in the id says nothing."""
    return task.created_at_ms, task.task_id[:12], task.task_id[16:20]


def _read(cursor: str | None, partitions: int) -> list[Place]:
    if cursor is None:
        return [None] * partitions
    try:
        places = _places_decoder.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, msgspec.DecodeError):
        places = []
    if len(places) != partitions or True in places:
        raise bad_cursor(cursor)
    return list(places)


def _write(places: Sequence[Place]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(places)).decode()


# -- documents -----------------------------------------------------------------------------------------------

#: What comes first has the lowest key.
Order = Callable[[Document], tuple[int, str]]
#: The copy that counts, of the documents of one name by partition.
Choice = Callable[[Mapping[int, Document]], Document]
Ask = Callable[[int, str | None, int], Awaitable[DocumentPage]]


class _Mark(msgspec.Struct, array_like=True):
    """How far one partition was listed: where its page began, and the key of the last document of it that was shown."""

    cursor: str | None = None
    last: tuple[int, str] | None = None
    ended: bool = False


_marks_decoder: Final = msgspec.json.Decoder(list[_Mark])


class MergedDocuments:
    """One page of the documents of several partitions, each of which lists its own in the same order."""

    def __init__(self, router: Router, order: Order, choice: Choice, ask: Ask, *, whole: bool) -> None:
        self._router = router
        self._order = order
        self._choice = choice
        self._ask = ask
        #: Whether no partition may be left out.
        self._whole = whole

    async def page(self, partitions: Sequence[int], cursor: str | None, limit: int) -> DocumentPage:
        """The next `limit` documents, or fewer: where a page of a partition ends, this one does too."""
        marks = _read_marks(cursor, len(self._router.stores))
        asked = {n: partial(self._rest, n, marks[n], limit) for n in partitions if not marks[n].ended}
        if self._whole:
            pages = await all_of({n: rest() for n, rest in asked.items()})
        else:
            pages = await self._router.from_those_there(asked)
        chosen = self._merged(pages, marks, limit)
        for n, page in pages.items():
            if not page.documents and page.cursor is None:
                marks[n].ended = True
            elif not page.documents:
                marks[n] = _Mark(page.cursor)
        # A partition that is left out keeps its mark, for the case that it is back when the next page is asked for.
        goes_on = any(not marks[n].ended for n in pages)
        now_ms = min((page.now_ms for page in pages.values()), default=0)
        return DocumentPage(chosen, now_ms, _write_marks(marks) if goes_on else None)

    async def _rest(self, n: int, mark: _Mark, limit: int) -> DocumentPage:
        """The page of one partition without what was shown of it before."""
        while True:
            page = await self._ask(n, mark.cursor, limit)
            rest = _after(page.documents, mark.last, self._order)
            if rest or page.cursor is None:
                return DocumentPage(rest, page.now_ms, page.cursor)
            mark.cursor = page.cursor  # `last` stays: what is new may lie behind it

    def _merged(self, pages: Mapping[int, DocumentPage], marks: Sequence[_Mark], limit: int) -> list[Document]:
        """Takes documents off the pages as long as none can be missing in front of them."""
        chosen: list[Document] = []
        room = MAX_PAGE_BYTES
        while len(chosen) < limit:
            if any(not page.documents and page.cursor is not None for page in pages.values()):
                break
            heads = {n: page.documents[0] for n, page in pages.items() if page.documents}
            if not heads:
                break
            first = min(heads.values(), key=self._order)
            copies = {n: head for n, head in heads.items() if head.name == first.name}
            document = self._choice(copies)
            room -= len(document.value)
            if room < 0 and chosen:
                break
            chosen.append(document)
            for n in copies:
                marks[n].last = self._order(first)
                del pages[n].documents[0]
        return chosen


def _after(documents: Sequence[Document], last: tuple[int, str] | None, order: Order) -> list[Document]:
    """The documents behind the one with this key; if that is gone meanwhile, those that would come after it."""
    if last is None:
        return list(documents)
    keys = [order(document) for document in documents]
    if last in keys:
        return list(documents[keys.index(last) + 1 :])
    return [document for document, key in zip(documents, keys, strict=True) if key > last]


def _read_marks(cursor: str | None, partitions: int) -> list[_Mark]:
    if cursor is None:
        return [_Mark() for _ in range(partitions)]
    try:
        marks = _marks_decoder.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, msgspec.DecodeError):
        marks = []
    if len(marks) != partitions:
        raise bad_cursor(cursor)
    return marks


def _write_marks(marks: Sequence[_Mark]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(marks)).decode()
