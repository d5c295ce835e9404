"""Fills a queue straight through the store, without an app in between."""

from __future__ import annotations

import os
import time
from typing import Final

from holdfast.core.ids import IdSource
from holdfast.core.task import NewTask
from holdfast.stores.contract import MAX_BATCH, Store

#: The type of the tasks that no worker of the bench will run.
NOOP: Final = "bench.noop"
_PAYLOAD: Final = b'{"number":1,"text":"some text"}'


def new_ids() -> IdSource:
    """Ids by the wall clock."""
    return IdSource(lambda: time.time_ns() // 1_000_000, os.urandom)


async def fill(
    store: Store, queue: str, count: int, ids: IdSource, *, delay_ms: int = 0, task_type: str = NOOP
) -> None:
    """Enqueues `count` tasks, ready or delayed."""
    place = await store.placement()

    def task() -> NewTask:
        task_id = ids.task_id(place(queue, None))
        return NewTask(task_id=task_id, type=task_type, queue=queue, payload=_PAYLOAD, delay_ms=delay_ms)

    for start in range(0, count, MAX_BATCH):
        await store.enqueue([task() for _ in range(min(MAX_BATCH, count - start))])
