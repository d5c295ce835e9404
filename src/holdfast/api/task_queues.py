"""Which queue a task is in: remembered for tasks that were handed out here, asked for otherwise. It never changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from holdfast.api.checks import is_task_id
from holdfast.core.task import Claimed, Task
from holdfast.stores.contract import MAX_BATCH, Store

#: Tasks that are settled where they were reserved are among the last that were handed out.
_MOST: Final = 50_000


class TaskQueues:
    """What a gateway remembers, so that a settlement need not be preceded by a look at its tasks."""

    def __init__(self, store: Store, most: int = _MOST) -> None:
        self._store = store
        self._most = most
        self._known: dict[str, str] = {}

    def learn(self, tasks: Iterable[Claimed | Task | None]) -> None:
        """Remembers where these tasks are."""
        self._known.update((task.task_id, task.queue) for task in tasks if task is not None)
        if len(self._known) > self._most:
            for task_id in list(self._known)[: self._most // 2]:
                del self._known[task_id]

    async def of(self, task_ids: Collection[str]) -> Mapping[str, str]:
        """The queues of these tasks; those that nobody knows are left out."""
        # Before the store is asked: meanwhile others may push them out.
        known = {task_id: self._known[task_id] for task_id in task_ids if task_id in self._known}
        asked = [task_id for task_id in dict.fromkeys(task_ids) if task_id not in known and is_task_id(task_id)]
        found: list[Task | None] = []
        for start in range(0, len(asked), MAX_BATCH):
            found += await self._store.get(asked[start : start + MAX_BATCH])
        looked_up = {task.task_id: task.queue for task in found if task is not None}
        self.learn(found)
        return {**known, **looked_up}
