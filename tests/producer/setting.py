"""An app on a store in memory that is watched, and a worker's hands on that store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import Holdfast, Retry
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.task import Claimed, Enqueued, Failure, Hold, NewTask, Progress, Task
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import MAINTENANCE, Reserve, Store
from holdfast.stores.decorate import PassingStore


class Watched(PassingStore):
    """Notes the batches that arrive, and loses the replies that it is told to lose."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.batches: list[list[str]] = []
        self.replies_to_lose = 0
        self.gets = 0

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        self.batches.append([task.task_id for task in tasks])
        answers = await self.inner.enqueue(tasks, map_version=map_version)
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
        self.retried = app.task(name="retried", retry=Retry(max_attempts=2, base=0))(double)
        self._claims = 0

    def claim(self) -> Claimed:
        self._claims += 1
        request = Reserve(
            claim_id=f"{self._claims:032x}",
            worker_id="w",
            shares=[QueueShare("default", 1)],
            max_tasks=1,
            lease_ms=30_000,
        )
        (task,) = asyncio.run(self.store.reserve(request)).tasks
        assert isinstance(task, Claimed)
        return task

    def claim_again(self) -> Claimed:
        """A task that waited for its next attempt."""

        async def promote() -> None:
            duty = await self.store.lead(MAINTENANCE, "w", 60_000)
            await self.store.promote(duty.epoch)

        asyncio.run(promote())
        return self.claim()

    def tell(self, task: Claimed, progress: Progress) -> None:
        hold = Hold(task.task_id, task.token, msgspec.json.encode(progress))
        asyncio.run(self.store.extend([hold], 30_000))

    def settle(self, change: lifecycle.Change) -> None:
        (verdict,) = asyncio.run(self.store.apply([change]))
        assert verdict.applied

    def fail(self, error: Failure, task: Claimed | None = None) -> None:
        task = task or self.claim()
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
