"""Looking into many partitions: pages, counts and records put together."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import State, Task
from holdfast.errors import BadOption
from holdfast.stores.contract import MAX_BATCH, Finding, Page, Query, QueueCounts, Store
from holdfast.stores.sharded.routing import all_of

#: Where the next page begins in one partition: None for its start, False when it has no more.
Place = str | bool | None
_places_decoder = msgspec.json.Decoder(list[str | bool | None])
_DEPTH = 5


async def find(stores: Sequence[Store], query: Query) -> Page:
    """One page, newest first. Within a partition the order is exact, across them it is by the time of recording."""
    places = _read(query.cursor, len(stores))
    limit = max(1, min(query.limit, MAX_BATCH))
    asked = {n: replace(query, cursor=place, limit=limit) for n, place in enumerate(places) if place is not False}
    pages = await all_of({n: stores[n].find(each) for n, each in asked.items()})
    chosen = list(islice(_newest_first({n: page.tasks for n, page in pages.items()}), limit))
    for n, page in pages.items():
        own = [task for partition, task in chosen if partition == n]
        if len(own) == len(page.tasks):
            places[n] = page.cursor or False
        elif own:
            places[n] = await _place_behind(stores[n], asked[n], [task.task_id for task in own])
    return Page([task for _, task in chosen], _write(places) if any(place is not False for place in places) else None)


def _newest_first(tasks: dict[int, list[Task]]) -> Iterator[tuple[int, Task]]:
    """The tasks of all partitions, those of each in the order in which they came."""

    def tagged(n: int) -> Iterator[tuple[int, Task]]:
        return ((n, task) for task in tasks[n])

    return heapq.merge(*map(tagged, tasks), key=lambda pair: _age(pair[1]), reverse=True)


def _age(task: Task) -> tuple[int, str, str]:
    """When it was recorded; within a millisecond, when its id was made: the partition in the id says nothing."""
    return task.created_at_ms, task.task_id[:12], task.task_id[16:20]


async def _place_behind(store: Store, query: Query, shown: Sequence[str]) -> Place:
    """The cursor right behind the last task that was shown; only whole pages end with one."""
    size = len(shown)
    place: Place = query.cursor
    for _ in range(_DEPTH):
        page = await store.find(replace(query, limit=size))
        place = page.cursor or False
        ids = [task.task_id for task in page.tasks]
        behind = ids.index(shown[-1]) + 1 if shown[-1] in ids else 0
        if behind == size or not ids:
            break
        # Others have come or gone in front of it meanwhile.
        size = behind or min(2 * size, MAX_BATCH)
    return place


def _read(cursor: str | None, partitions: int) -> list[Place]:
    if cursor is None:
        return [None] * partitions
    try:
        places = _places_decoder.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, msgspec.DecodeError):
        places = []
    if len(places) != partitions or True in places:
        raise BadOption(f"cursor {cursor[:40]!r} is not one that a page ended with")
    return list(places)


def _write(places: Sequence[Place]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(places)).decode()


def sum_up(counts: Sequence[QueueCounts]) -> list[QueueCounts]:
    """The counts of all partitions, one entry a queue, by name."""
    queues: dict[str, list[QueueCounts]] = {}
    for entry in counts:
        queues.setdefault(entry.queue, []).append(entry)
    return [_summed(queue, queues[queue]) for queue in sorted(queues)]


def _summed(queue: str, entries: Sequence[QueueCounts]) -> QueueCounts:
    states: dict[State, int] = {}
    for entry in entries:
        for state, number in entry.states.items():
            states[state] = states.get(state, 0) + number
    oldest = [entry.oldest_ready_ms for entry in entries if entry.oldest_ready_ms is not None]
    return QueueCounts(
        queue=queue,
        paused=any(entry.paused for entry in entries),
        step_ms=next((entry.step_ms for entry in entries if entry.step_ms != AGED_STEP_MS), AGED_STEP_MS),
        states=states,
        oldest_ready_ms=max(oldest, default=None),
    )


def labelled(findings: Sequence[Finding], partition: int) -> list[Finding]:
    """The findings of one partition, saying of which."""
    return [replace(finding, text=f"partition {partition}: {finding.text}") for finding in findings]
