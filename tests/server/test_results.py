"""Waiting for the end of tasks: how often the store is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from holdfast.core.task import State, Task
from holdfast.server.polls import Results
from holdfast.stores.contract import Store

_SMALL, _LARGE = "1" * 32, "2" * 32


class _Unfinished:
    """A store whose tasks do not end, and that knows how often each was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.enough = asyncio.Event()

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        self.asked.update(task_ids)
        if self.asked[_SMALL] == 6:
            self.enough.set()
        return [_task(task_id) for task_id in task_ids]


def _task(task_id: str) -> Task:
    numbers: dict[str, Any] = dict.fromkeys(("priority", "attempt", "deliveries", "created_at_ms", "run_at_ms"), 0)
    payload = b"x" * (20_000_000 if task_id == _LARGE else 20)
    return Task(task_id=task_id, type="add", queue="q", state=State.READY, payload=payload, **numbers)


def test_large_tasks_are_asked_for_less_often() -> None:
    async def wait() -> Counter[str]:
        store = _Unfinished()
        results = Results(cast("Store", store))
        waits = [asyncio.create_task(results.ended(task_id, 60)) for task_id in (_SMALL, _LARGE)]
        await asyncio.wait_for(store.enough.wait(), 20)
        results.release_all()
        await asyncio.gather(*waits)
        await results.close()
        return store.asked

    asked = asyncio.run(wait())
    assert 1 <= asked[_LARGE] <= asked[_SMALL] // 2
