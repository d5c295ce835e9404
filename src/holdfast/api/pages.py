"""Tasks by the hundred: no answer without end, and nobody waits while one is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from holdfast.api.turns import Turns
from holdfast.core.task import Attempt, Task
from holdfast.stores.contract import Page, Query, Store
from holdfast.wire.limits import MAX_PAGE_BYTES

T = TypeVar("T")

Find = Callable[[Query], Awaitable[Page]]

#: A store is asked for so many at a time: usual pages are one call, and large tasks do not fill the memory.
STEP: Final = 100
#: The same where each comes with its history.
STEP_WITH_HISTORY: Final = 25
#: Of what else there is to a task.
_USUAL_BYTES: Final = 500

_encode = msgspec.json.Encoder().encode


async def find_page(find: Find, query: Query, step: int = STEP) -> Page:
    """The page that was asked for, or as much of it as one answer has room for, with the cursor to go on."""
    tasks: list[Task] = []
    room, cursor = MAX_PAGE_BYTES, query.cursor
    while True:
        part = replace(query, limit=min(step, query.limit - len(tasks)), cursor=cursor)
        page = await find(part)
        fitting, room = _fitting(page.tasks, room)
        if fitting < len(page.tasks):
            # Only the store can tell where to go on behind fewer of them.
            page = await find(replace(part, limit=fitting))
        tasks += page.tasks
        cursor = page.cursor
        if cursor is None or room <= 0 or len(tasks) >= query.limit:
            return Page(tasks, cursor)


async def get_tasks(store: Store, task_ids: Sequence[str]) -> list[Task | None]:
    """The tasks with all that is known of them."""
    parts = [await store.get(task_ids[start : start + STEP]) for start in range(0, len(task_ids), STEP)]
    return [task for part in parts for task in part]


async def shown(tasks: Iterable[Task], show: Callable[[Task], T]) -> list[T]:
    """What is shown of each."""
    turns = Turns()
    return [await turns.work(weight(task), show, task) for task in tasks]


def list_response(tasks: list[Task | None]) -> list[Task | None] | Response:
    """The list, if it is no longer than a page; else the answer that it is, written while it is sent."""
    if sum(weight(task) for task in tasks if task is not None) <= MAX_PAGE_BYTES:
        return tasks
    return StreamingResponse(_written(tasks), media_type="application/json")


async def _written(items: Sequence[Any]) -> AsyncIterator[bytes]:
    turns = Turns()
    begin = b"["
    for item in items:
        written = _encode(item)
        yield begin + written
        await turns.after(len(written))
        begin = b","
    yield b"]"


def weight(task: Task) -> int:
    """About how many bytes it is in an answer."""
    return (
        _USUAL_BYTES
        + len(task.payload)
        + len(task.result or b"")
        + len(task.progress or b"")
        + len(task.reason or "")
        + sum(map(_weight_of_attempt, task.history))
    )


def _weight_of_attempt(attempt: Attempt) -> int:
    error = attempt.error
    if error is None:
        return 0
    return len(error.message) + len(error.traceback) + sum(len(line.text) for line in error.log)


def _fitting(tasks: Sequence[Task], room: int) -> tuple[int, int]:
    """How many of them there is room for, the first one in any case, and the room that is left."""
    for number, task in enumerate(tasks, 1):
        room -= weight(task)
        if room <= 0:
            return number, room
    return len(tasks), room
