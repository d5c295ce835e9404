"""An app on a store in memory that is watched, and a worker's hands on that store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast import Holdfast, Retry
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.task import Claimed, Enqueued, Failure, NewTask, Task
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Reserve, Store
from holdfast.testing.wrapping import PassingStore


class Watched(PassingStore):
    """Notes the batches that arrive, and loses the replies that it is told to lose."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.batches: list[list[str]] = []
        self.replies_to_lose = 0
        self.gets = 0

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        self.batches.append([task.task_id for task in tasks])
        answers = await self.inner.enqueue(tasks)
        self._lose()
        return answers

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        self.gets += 1
        self._lose()
        return await self.inner.get(task_ids)

    def _lose(self) -> None:
        if self.replies_to_lose:
            self.replies_to_lose -= 1
            raise StoreUnavailable("the reply is lost")


class Setting:
    """An app on a store in memory, and a worker's hands on that store."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.store: Any = app.store
        self.double = app.task(name="double")(double)
        self.quiet = app.task(name="quiet", retry=Retry(max_attempts=1))(double)

    def claim(self) -> Claimed:
        request = Reserve(
            claim_id="c" * 32,
            worker_id="w",
            shares=[QueueShare("default", 1)],
            max_tasks=1,
            lease_ms=30_000,
        )
        (task,) = asyncio.run(self.store.reserve(request)).tasks
        assert isinstance(task, Claimed)
        return task

    def settle(self, change: lifecycle.Change) -> None:
        (verdict,) = asyncio.run(self.store.apply([change]))
        assert verdict.applied

    def fail(self, error: Failure) -> None:
        task = self.claim()
        self.settle(
            lifecycle.fail(
                task.task_id,
                task.token,
                error,
                attempt=task.attempt,
                policy=task.policy,
                retryable=True,
                random_unit=0,
            )
        )


def double(number: int) -> int:
    return 2 * number
