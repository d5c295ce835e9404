"""Which queue a task is in, as a server remembers it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.task import NewTask, Task
from holdfast.server.server import TaskQueues
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store

FIRST, SECOND, THIRD = "0" * 31 + "1", "0" * 31 + "2", "0" * 31 + "3"


def test_what_is_known_is_not_forgotten_while_the_store_is_asked_for_the_rest(tmp_path: Path) -> None:
    class Busy(PassingStore):
        """Others ask for so many tasks meanwhile that the first one is pushed out."""

        async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
            queues.learn(await super().get([SECOND, THIRD]))
            return await super().get(task_ids)

    async def look() -> dict[str, str]:
        ids = (FIRST, SECOND, THIRD)
        await store.enqueue([NewTask(task_id=each, type="t", queue="q", payload=b"{}") for each in ids])
        queues.learn(await store.inner.get([FIRST]))
        return dict(await queues.of([FIRST, SECOND]))

    async def run() -> dict[str, str]:
        await store.migrate()
        try:
            return await look()
        finally:
            await store.close()

    store = Busy(open_store(f"sqlite:///{tmp_path}/tasks.db"))
    queues = TaskQueues(store, most=2)
    assert asyncio.run(run()) == {FIRST: "q", SECOND: "q"}
