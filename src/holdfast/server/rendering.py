"""From records of the store to answers: without secrets the caller may not see, and of bounded size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec.structs import asdict, replace

from holdfast.admin.inspect import QueueRow
from holdfast.admin.views import ScheduleView, TaskView, json_or_base64, schedule_view, task_view
from holdfast.core.lifecycle import Verdict
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import Attempt, Claimed, Failure, Task
from holdfast.security.redaction import redacted_headers, redacted_json, redacted_text
from holdfast.server.auth import Caller
from holdfast.server.budgets import CpuSlices
from holdfast.server.responses import ChangeView, ClaimedView, QueueView
from holdfast.stores.contract import Page, Query, Store
from holdfast.stores.documents import Discard
from holdfast.stores.remote.limits import MAX_PAGE_BYTES

T = TypeVar("T")

Find = Callable[[Query], Awaitable[Page]]

#: Tasks per call to the store: first a few, then more if those were small. Most pages take two calls, and large tasks
#: do not fill the memory.
FIRST_STEP: Final = 16
STEP: Final = 100
#: The same where each comes with its history.
FIRST_STEP_WITH_HISTORY: Final = 4
#: Of a task without its payload, result, progress and history.
_USUAL_BYTES: Final = 500
#: Memory reserved for an answer of unknown size: of a task, of a page.
TASK_BYTES: Final = 1024 * 1024
PAGE_BYTES: Final = 2 * MAX_PAGE_BYTES


# -- pages of bounded size -----------------------------------------------------------------------------------------


async def find_page(find: Find, query: Query, first_step: int = FIRST_STEP) -> Page:
    """The page that was asked for, or as much of it as one answer has room for, with the cursor to go on."""
    tasks: list[Task] = []
    after: list[str] = []
    room, cursor, step = MAX_PAGE_BYTES, query.cursor, first_step
    while True:
        asked = min(step, query.limit - len(tasks))
        page = await find(replace(query, limit=asked, cursor=cursor))
        before = room
        fitting, room = _fitting(page, room)
        step = _next_step(step, before - room)
        tasks += page.tasks[:fitting]
        after += page.after[:fitting]
        cursor = page.after[fitting - 1] if fitting < len(page.tasks) else page.cursor
        # A search that ended early has cost the store enough for one request; the client may go on by the cursor.
        if cursor is None or room <= 0 or len(tasks) >= query.limit or len(page.tasks) < asked:
            return Page(tasks, cursor, after)


async def get_tasks(store: Store, task_ids: Sequence[str]) -> list[Task | None]:
    """The tasks with all that is known of them, the first ones, as many as one answer has room for."""
    found: list[Task | None] = []
    room = MAX_PAGE_BYTES
    async for task in each_task(store, task_ids):
        found.append(task)
        room -= 0 if task is None else weight(task)
        if room <= 0:
            break
    return found


async def each_task(store: Store, task_ids: Sequence[str]) -> AsyncIterator[Task | None]:
    """One task after the other; the store is asked for no more of them at once than there is room for."""
    done, step = 0, FIRST_STEP_WITH_HISTORY
    while done < len(task_ids):
        found = await store.get(task_ids[done : done + step])
        done += len(found)
        step = _next_step(step, sum(weight(task) for task in found if task is not None))
        for task in found:
            yield task


def _next_step(step: int, brought_bytes: int) -> int:
    """How many to read next: twice as many while they are small, fewer if they are large."""
    return max(1, min(2 * step, STEP, MAX_PAGE_BYTES * step // max(brought_bytes, 1)))


async def shown(tasks: Iterable[Task], show: Callable[[Task], T]) -> list[T]:
    """What is shown of each."""
    slices = CpuSlices()
    return [await slices.work(weight(task), show, task) for task in tasks]


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


def _fitting(page: Page, room: int) -> tuple[int, int]:
    """How many of its tasks there is room for, the first one in any case, and the room that is left."""
    for number, (task, after) in enumerate(zip(page.tasks, page.after, strict=True), 1):
        room -= weight(task) + len(after)
        if room <= 0:
            return number, room
    return len(page.tasks), room


# -- what a caller is shown ----------------------------------------------------------------------------------------


def shown_task(task: Task, caller: Caller, *, history: bool) -> TaskView:
    """The task; its arguments and results as far as this caller may see them."""
    return task_view(without_secrets(task, caller), history=history)


def without_secrets(task: Task, caller: Caller) -> Task:
    """The task as this caller may see it."""
    if caller.sees_secrets(task.queue):
        return task
    return replace(
        task,
        payload=redacted_json(task.payload) or b"{}",
        result=redacted_json(task.result),
        progress=redacted_json(task.progress),
        headers=redacted_headers(task.headers),
        reason=None if task.reason is None else redacted_text(task.reason),
        history=tuple(replace(run, error=_without_secrets(run.error)) for run in task.history),
    )


def _without_secrets(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    log = tuple(replace(line, text=redacted_text(line.text)) for line in failure.log)
    return Failure(failure.type, redacted_text(failure.message), redacted_text(failure.traceback), log)


def discard_without_secrets(discard: Discard, caller: Caller) -> Discard:
    """The record of a discarded task as this caller may see it."""
    if caller.sees_secrets(discard.queue):
        return discard
    return replace(
        discard,
        payload=redacted_json(discard.payload) or b"{}",
        error=redacted_text(discard.error),
        reason=redacted_text(discard.reason),
    )


def schedule_without_secrets(schedule: Schedule, caller: Caller) -> Schedule:
    """The schedule as this caller may see it."""
    call = schedule.call
    if caller.sees_secrets(call.queue):
        return schedule
    payload, headers = redacted_json(call.payload) or b"{}", redacted_headers(call.headers)
    return replace(schedule, call=replace(call, payload=payload, headers=headers))


def shown_claim(task: Claimed, lease_ms: int) -> ClaimedView:
    """A claimed task, whole: its worker needs it."""
    arguments, arguments_base64 = json_or_base64(task.payload)
    return ClaimedView(
        task_id=task.task_id,
        token=task.token,
        type=task.type,
        queue=task.queue,
        arguments=arguments,
        headers=task.headers,
        priority=task.priority,
        attempt=task.attempt,
        max_attempts=task.policy.max_attempts,
        timeout_ms=task.policy.timeout_ms,
        created_at_ms=task.created_at_ms,
        claimed_at_ms=task.claimed_at_ms,
        lease_expires_at_ms=task.claimed_at_ms + lease_ms,
        arguments_base64=arguments_base64,
    )


def shown_changes(task_ids: Sequence[str], verdicts: Sequence[Verdict]) -> list[ChangeView]:
    """One line for each change."""
    return [ChangeView.of(task_id, verdict) for task_id, verdict in zip(task_ids, verdicts, strict=True)]


def shown_schedule(schedule: Schedule, caller: Caller) -> ScheduleView:
    """The schedule; its arguments as far as this caller may see them."""
    return schedule_view(schedule_without_secrets(schedule, caller))


def shown_queue(row: QueueRow) -> QueueView:
    """The queue."""
    return QueueView(**asdict(row))
