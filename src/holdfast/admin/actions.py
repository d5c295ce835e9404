"""Acting: cancel, prioritize, reschedule, replay and discard tasks; pause, resume, order and purge queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.admin.inspect import every_page
from holdfast.admin.search import error_class
from holdfast.clock import Clock, SystemClock
from holdfast.core import lifecycle
from holdfast.core.durations import Duration
from holdfast.core.ids import check_task_id
from holdfast.core.lifecycle import Change, Event, Verdict
from holdfast.core.names import check_queue
from holdfast.core.priority import Order, check_priority, step_of
from holdfast.core.task import State
from holdfast.errors import BadOption, Refused, UnknownTask
from holdfast.stores import documents
from holdfast.stores.contract import MAX_BATCH, Query, Store

MakeChange = Callable[[str], Change]
#: Told after every batch how many tasks are done.
Progress = Callable[[int], None]
_REASON_LIMIT = 500


class BulkResult(msgspec.Struct, frozen=True):
    """How many tasks matched and were changed; the rest had moved on meanwhile."""

    matched: int
    changed: int
    #: Of those that were changed, the ones that a worker still runs.
    running: int = 0


async def cancel(store: Store, task_ids: Sequence[str], reason: str) -> list[Verdict]:
    """Keeps waiting tasks from running and tells running ones to stop; one verdict each."""
    reason = check_reason(reason)
    return await _apply(store, task_ids, lambda task_id: lifecycle.cancel(task_id, reason))


async def prioritize(store: Store, task_ids: Sequence[str], priority: int) -> list[Verdict]:
    """Gives waiting tasks another priority, and the place in their queue that goes with it; one verdict each."""
    check_priority(priority)
    return await _apply(store, task_ids, lambda task_id: lifecycle.prioritize(task_id, priority))


async def run_now(store: Store, task_ids: Sequence[str]) -> list[Verdict]:
    """Makes delayed tasks, and those that wait for another attempt, due at once; one verdict each."""
    return await _apply(store, task_ids, lambda task_id: lifecycle.reschedule(task_id, 0))


async def reschedule(store: Store, task_ids: Sequence[str], run_at_ms: int) -> list[Verdict]:
    """Has ready and delayed tasks run at this time, or at once if it has passed; one verdict each."""
    # By the store's clock, which decides what is due.
    now_ms = (await store.documents(documents.QUEUE, limit=1)).now_ms
    delay_ms = max(0, run_at_ms - now_ms)
    return await _apply(store, task_ids, lambda task_id: lifecycle.reschedule(task_id, delay_ms))


async def replay(store: Store, task_ids: Sequence[str]) -> list[Verdict]:
    """Puts dead letters back with fresh attempts; one verdict each."""
    return await _apply(store, task_ids, lifecycle.replay)


async def discard(store: Store, task_ids: Sequence[str], reason: str) -> list[Verdict]:
    """Deletes dead letters, each with a record of payload and reason; one verdict each."""
    reason = check_reason(reason)
    return await _apply(store, task_ids, lambda task_id: lifecycle.discard(task_id, reason))


async def pause(store: Store, queue: str) -> None:
    """Stops handing out tasks of this queue; what is running goes on."""
    await documents.pause(store, check_queue(queue), True)


async def resume(store: Store, queue: str) -> None:
    """Hands out tasks of this queue again."""
    await documents.pause(store, check_queue(queue), False)


async def set_order(store: Store, queue: str, order: Order, step: Duration | None = None) -> int:
    """Says what priority is worth in this queue, also for the tasks that wait there; the step in milliseconds."""
    step_ms = step_of(order, step)
    await documents.set_step(store, check_queue(queue), step_ms)
    return step_ms


#: States whose tasks are purged: they wait for a worker or for their time.
PURGED: Final = frozenset(lifecycle.sources(Event.RESCHEDULE))
#: Tasks that are being purged are put off by this much first, so that no worker claims them before they are cancelled.
_PURGE_DELAY_MS: Final = 600_000


async def purge(
    store: Store, query: Query, reason: str, *, limit: int, progress: Progress = lambda _: None
) -> BulkResult:
    """Cancels the tasks that match and wait, at most `limit`, in batches of `MAX_BATCH`; what runs is not touched.

    To cancel a task that a worker has just claimed would stop its run. So each is put off first, which is refused for
    one that runs, and cancelled then. A purge that dies in between has put off some tasks by ten minutes.
    """
    reason = check_reason(reason)
    matched = changed = 0
    async for tasks in every_page(store, replace(query, states=query.states or PURGED), limit):
        delayed = await store.apply([lifecycle.reschedule(task.task_id, _PURGE_DELAY_MS) for task in tasks])
        kept = [task.task_id for task, verdict in zip(tasks, delayed, strict=True) if verdict.applied]
        cancelled = await store.apply([lifecycle.cancel(task_id, reason) for task_id in kept])
        matched += len(tasks)
        changed += sum(verdict.applied for verdict in cancelled)
        progress(matched)
    return BulkResult(matched, changed)


def check_reason(reason: str) -> str:
    """The reason, or a `BadOption` when it is empty or a novel."""
    if not 1 <= len(reason.strip()) <= _REASON_LIMIT:
        raise BadOption(f"reason: write 1 to {_REASON_LIMIT} characters")
    return reason.strip()


def dead_letters(queue: str | None = None, type: str | None = None, error_type: str | None = None) -> Query:  # noqa: A002
    """The query for dead letters, narrowed by queue, task type and class of error (`ValueError`: the built-in)."""
    error = error_class(error_type) if error_type else None
    return Query(states=frozenset({State.DEAD_LETTERED}), queue=queue, type=type, error_type=error)


async def count_matching(store: Store, query: Query, limit: int) -> int:
    """How many tasks match, counted up to `limit`."""
    return sum([len(tasks) async for tasks in every_page(store, query, limit)])


class Pace:
    """Keeps a bulk action at or below a rate, in tasks a second; None is as fast as it goes."""

    def __init__(
        self,
        rate: float | None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if rate is not None and not 0 < rate < float("inf"):
            raise BadOption(f"rate {rate!r} is refused: it is a number of tasks a second, above 0")
        self.rate = rate
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._next_at_ms = 0.0

    @property
    def batch(self) -> int:
        """How many tasks to change at once: a tenth of a second's worth, so that the rate is smooth."""
        return MAX_BATCH if self.rate is None else max(1, min(MAX_BATCH, int(self.rate / 10)))

    async def before(self, count: int) -> None:
        """Waits until `count` more tasks are within the rate."""
        if self.rate is None:
            return
        now_ms = self._clock.monotonic_ms()
        if self._next_at_ms > now_ms:
            await self._sleep((self._next_at_ms - now_ms) / 1000)
        self._next_at_ms = max(self._next_at_ms, now_ms) + count * 1000 / self.rate


async def in_bulk(
    store: Store,
    query: Query,
    make_change: MakeChange,
    *,
    limit: int,
    pace: Pace,
    progress: Progress = lambda _: None,
) -> BulkResult:
    """Makes the change to every task that matches, newest first, at most `limit`; each is met once."""
    matched = changed = running = 0
    async for tasks in every_page(store, query, limit):
        for start in range(0, len(tasks), pace.batch):
            batch = tasks[start : start + pace.batch]
            await pace.before(len(batch))
            verdicts = await store.apply([make_change(task.task_id) for task in batch])
            matched += len(batch)
            changed += sum(verdict.applied for verdict in verdicts)
            running += sum(verdict.applied and verdict.state is State.CLAIMED for verdict in verdicts)
            progress(matched)
    return BulkResult(matched, changed, running)


def refusal(task_id: str, verdict: Verdict, verb: str) -> UnknownTask | Refused | None:
    """The error that a refused change means to the one who asked for it, None if it was applied."""
    if verdict.applied:
        return None
    if verdict.reason == "unknown":
        return UnknownTask(f"no task {task_id} in this store")
    state = verdict.state or "gone"
    return Refused(f"task {task_id} is {state}: it cannot be {verb}")


async def _apply(store: Store, task_ids: Sequence[str], make_change: MakeChange) -> list[Verdict]:
    changes = [make_change(check_task_id(task_id)) for task_id in task_ids]
    verdicts: list[Verdict] = []
    for start in range(0, len(changes), MAX_BATCH):
        verdicts += await store.apply(changes[start : start + MAX_BATCH])
    return verdicts
