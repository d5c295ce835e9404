"""Bugs of enqueue and of reading."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.task import Enqueued, NewTask, Task
from holdfast.stores.contract import Page, Query, Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import BrokenStore


class DedupOutsideTheTransaction(BrokenStore):
    """A request_id is looked up in the process's own memory: other processes and restarts make a second task."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._known: dict[tuple[str, str], str] = {}

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Deduplicated by memory only."""
        return [await self._enqueue(task, map_version) for task in tasks]

    async def _enqueue(self, task: NewTask, map_version: int) -> Enqueued:
        key = (task.queue, task.request_id or task.task_id)
        if key in self._known:
            return Enqueued(self._known[key], created=False)
        [answer] = await self.inner.enqueue([replace(task, request_id=None)], map_version=map_version)
        # Remembered after the write: a second call in between does not see it.
        self._known[key] = answer.task_id
        return answer


class RequestIdForAllQueues(BrokenStore):
    """A request_id counts over all queues."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._known: dict[str, str] = {}

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """The queue is no part of the key."""
        return [await self._enqueue(task, map_version) for task in tasks]

    async def _enqueue(self, task: NewTask, map_version: int) -> Enqueued:
        first = self._known.setdefault(task.request_id or task.task_id, task.task_id)
        if first != task.task_id:
            return Enqueued(first, created=False)
        return (await self.inner.enqueue([task], map_version=map_version))[0]


class KnownIdOfAnotherQueue(BrokenStore):
    """A known task_id is answered as the same task for a call to another queue too: a way to guess what it holds."""

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Conflicts are silenced where only the queue differs."""
        return [
            replace(answer, conflict=None) if answer.conflict and await self._differs_by_queue(task) else answer
            for task, answer in zip(tasks, await self.inner.enqueue(tasks, map_version=map_version), strict=True)
        ]

    async def _differs_by_queue(self, task: NewTask) -> bool:
        [known] = await self.inner.get([task.task_id])
        return known is not None and (known.type, known.payload) == (task.type, task.payload)


class ConflictNotDetected(BrokenStore):
    """A known id with another payload is answered as the same task."""

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Conflicts are silenced."""
        return [replace(answer, conflict=None) for answer in await self.inner.enqueue(tasks, map_version=map_version)]


class BadItemRefusesTheBatch(BrokenStore):
    """One conflict refuses all tasks of its batch."""

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Records nothing when one of them is known."""
        known = await self.inner.get([task.task_id for task in tasks])
        requests = [task.request_id for task in tasks if task.request_id]
        if any(known) or len(set(requests)) < len(requests) or await self._requested(tasks):
            return [Enqueued(task.task_id, created=False, conflict="batch refused") for task in tasks]
        return await self.inner.enqueue(tasks, map_version=map_version)

    async def _requested(self, tasks: Sequence[NewTask]) -> bool:
        page = await self.inner.find(Query(limit=1_000))
        taken = {(task.queue, task.request_id) for task in page.tasks if task.request_id}
        return any((task.queue, task.request_id) in taken for task in tasks)


class ForgetsAfterReopen(BrokenStore):
    """Tasks are kept in memory: another process does not know them."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._seen: set[str] = set()

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Remembered here."""
        answers = await self.inner.enqueue(tasks, map_version=map_version)
        self._seen.update(answer.task_id for answer in answers)
        return answers

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Only what this opened store has recorded."""
        found = await self.inner.get(task_ids)
        return [task if task and task.task_id in self._seen else None for task in found]


class DropsOneInTen(BrokenStore):
    """Every tenth task is acknowledged and never recorded."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._number = 0

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """One by one, the tenth into the void."""
        return [await self._enqueue(task, map_version) for task in tasks]

    async def _enqueue(self, task: NewTask, map_version: int) -> Enqueued:
        self._number += 1
        if self._number % 10 == 0:
            return Enqueued(task.task_id)
        return (await self.inner.enqueue([task], map_version=map_version))[0]


class DelayIgnored(BrokenStore):
    """A delayed task is ready at once."""

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Without delays."""
        return await self.inner.enqueue(
            [replace(task, delay_ms=0, run_at_ms=None) for task in tasks], map_version=map_version
        )


class HistoryDropped(BrokenStore):
    """Only the last attempt is kept."""

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The history cut short."""
        found = await self.inner.get(task_ids)
        return [task and replace(task, history=task.history[-1:]) for task in found]


class ResultTruncated(BrokenStore):
    """Results are cut at 1,000 bytes, and an empty one is none."""

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """With short results."""
        found = await self.inner.get(task_ids)
        return [task and replace(task, result=(task.result or b"")[:1_000] or None) for task in found]


class PageRepeatsItsEdge(BrokenStore):
    """Every further page begins with the last task of the one before."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._last: dict[str, Task] = {}

    async def find(self, query: Query) -> Page:
        """One task in front that was on the last page."""
        page = await self.inner.find(query)
        again = [self._last[query.cursor]] if query.cursor in self._last else []
        if page.cursor and page.tasks:
            self._last[page.cursor] = page.tasks[-1]
        return replace(page, tasks=[*again, *page.tasks][: query.limit])


class CursorBehindThePageOnly(BrokenStore):
    """The cursor of every task is the one behind its page, so what follows the task within the page is skipped."""

    async def find(self, query: Query) -> Page:
        """The last cursor for all."""
        page = await self.inner.find(query)
        return replace(page, after=page.after[-1:] * len(page.after))
