"""Looking: tasks, queues, workers and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from holdfast.core.durations import format_ms
from holdfast.core.ids import check_task_id
from holdfast.core.payload import is_encrypted
from holdfast.core.priority import Order, order_of
from holdfast.core.task import Failure, Progress, State, Task
from holdfast.errors import UnknownTask
from holdfast.security.crypto import shown
from holdfast.stores.contract import MAX_BATCH, Page, Query, QueueCounts, Store, WorkerRecord


def printable(text: str) -> str:
    """The text with every control, format and unassigned character escaped, so that data cannot drive a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def first_line(text: str, longest: int = 160) -> str:
    """The first line of a text, cut to a length."""
    line = text.strip().partition("\n")[0].rstrip()
    return line if len(line) <= longest else line[: longest - 1] + "…"


def about_ms(milliseconds: int) -> str:
    """A duration rounded to what a person reads: tenths below ten seconds, whole seconds above."""
    step = 100 if 1_000 <= milliseconds < 10_000 else 1_000 if milliseconds >= 10_000 else 1
    return format_ms(max(0, round(milliseconds / step) * step))


def several(count: int, noun: str, plural: str | None = None) -> str:
    """`1 task`, `12 tasks`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def progress_text(progress: Progress) -> str:
    """`3 of 10, half way`; empty if the run has told nothing."""
    done = "" if progress.done is None else f"{round(progress.done, 2):,}"
    if done and progress.total:
        done += f" of {round(progress.total, 2):,}"
    return ", ".join(part for part in (done, progress.note) if part)


# -- inspect -------------------------------------------------------------------------------------------------


#: How many of the newest dead letters a grouping reads at most.
GROUPING_LIMIT = 10_000
#: Histories are long: at most this many are in memory at once.
_PAGE_WITH_HISTORY = 100


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: its depth in every state, and who serves it."""

    queue: str
    paused: bool
    order: Order
    step_ms: int
    states: Mapping[State, int]
    oldest_ready_ms: int | None
    #: Live workers that serve it.
    workers: int


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one task type that ended with the same class of error."""

    type: str
    error_type: str
    count: int
    #: Of the newest of them.
    message: str
    newest_task_id: str
    newest_at_ms: int | None


class ErrorGroups(msgspec.Struct, frozen=True):
    """The groups, largest first; `complete` is False when there were more dead letters than were read."""

    groups: list[ErrorGroup]
    looked_at: int
    complete: bool


async def one_task(store: Store, task_id: str) -> Task:
    """The task with payload, result and history, or `UnknownTask`."""
    (task,) = await store.get([check_task_id(task_id)])
    if task is None:
        raise UnknownTask(f"no task {task_id} in {store.url}")
    return task


async def with_history(store: Store, page: Page) -> Page:
    """The same page, each task with payload, result and history; what has gone meanwhile is left out."""
    found = await store.get([task.task_id for task in page.tasks])
    there = [(task, after) for task, after in zip(found, page.after, strict=True) if task is not None]
    return Page([task for task, _ in there], page.cursor, [after for _, after in there])


async def every_page(store: Store, query: Query, limit: int, page_limit: int = MAX_BATCH) -> AsyncIterator[list[Task]]:
    """The matching tasks page by page, newest first, at most `limit` in all."""
    left, cursor = limit, query.cursor
    while left > 0:
        page = await store.find(msgspec.structs.replace(query, limit=min(left, page_limit), cursor=cursor))
        if page.tasks:
            yield page.tasks
        left, cursor = left - len(page.tasks), page.cursor
        if cursor is None:
            return


async def queue_table(store: Store) -> list[QueueRow]:
    """Every queue that has tasks or a setting of its own, or is served by a live worker, by name."""
    serving = _servers(await store.workers())
    counted = {counts.queue: counts for counts in await store.counts()}
    return [
        _row(counted.get(queue) or QueueCounts(queue=queue), serving.get(queue, 0))
        for queue in sorted({*counted, *serving})
    ]


def _row(counts: QueueCounts, workers: int) -> QueueRow:
    return QueueRow(
        queue=counts.queue,
        paused=counts.paused,
        order=order_of(counts.step_ms),
        step_ms=counts.step_ms,
        states=counts.states,
        oldest_ready_ms=counts.oldest_ready_ms,
        workers=workers,
    )


async def worker_table(store: Store) -> list[WorkerRecord]:
    """Every worker heard of and not yet pruned, the living first."""
    return sorted(await store.workers(), key=lambda worker: (not worker.alive, worker.worker_id))


async def dead_letters_by_error(store: Store, query: Query, limit: int = GROUPING_LIMIT) -> ErrorGroups:
    """The newest dead letters that match, grouped by task type and class of error."""
    groups: dict[tuple[str, str], ErrorGroup] = {}
    looked_at = 0
    async for tasks in every_page(store, query, limit + 1, _PAGE_WITH_HISTORY):
        found = await store.get([task.task_id for task in tasks[: limit - looked_at]])
        looked_at += len(tasks)
        for task in found:
            if task is not None:
                _count(groups, task)
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.type, group.error_type))
    return ErrorGroups(ordered, min(looked_at, limit), looked_at <= limit)


def last_failure(task: Task) -> Failure | None:
    """The error of the last attempt that had one."""
    return next((attempt.error for attempt in reversed(task.history) if attempt.error is not None), None)


def readable(data: bytes) -> bytes:
    """JSON bytes as people are shown them: of encrypted ones the length."""
    return shown(data) if is_encrypted(data) else data


def json_value(data: bytes | None) -> Any:
    """The value of JSON bytes; bytes that are no JSON come back as text, of encrypted ones their length is told."""
    if data is None:
        return None
    data = readable(data)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="backslashreplace")


def _count(groups: dict[tuple[str, str], ErrorGroup], task: Task) -> None:
    failure = last_failure(task)
    error_type = failure.type if failure else task.reason or "unknown"
    key = (task.type, error_type)
    if key in groups:
        groups[key] = msgspec.structs.replace(groups[key], count=groups[key].count + 1)
        return
    groups[key] = ErrorGroup(
        type=task.type,
        error_type=error_type,
        count=1,
        message=failure.message if failure else "",
        newest_task_id=task.task_id,
        newest_at_ms=task.finished_at_ms,
    )


def _servers(workers: list[WorkerRecord]) -> dict[str, int]:
    serving: dict[str, int] = {}
    for worker in workers:
        if worker.alive:
            for queue in worker.queues:
                serving[queue] = serving.get(queue, 0) + 1
    return serving
