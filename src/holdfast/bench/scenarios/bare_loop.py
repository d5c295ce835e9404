"""How fast the store alone is: reserve and ack in one process, no worker. The limit of every worker."""

from __future__ import annotations

import os
import time

from holdfast.bench.figures import Figure
from holdfast.bench.setting import Setting
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change
from holdfast.core.task import NewTask
from holdfast.stores.contract import MAX_BATCH, Reserve, Store

_PAYLOAD = b'{"number":1,"text":"some text"}'
_RESULT = b"10"


async def measure(setting: Setting) -> list[Figure]:
    """The rate with batches of 100, and with batches as large as the worker's."""
    figures = []
    for batch in sorted({100, min(setting.sizes.concurrency, MAX_BATCH)}):
        scenario = f"bare-{batch}"
        async with setting.store(scenario) as store:
            rate = await _loop(store, setting.queue(scenario), setting.sizes.bare, batch)
        figures.append(Figure(f"bare_loop_{batch}", f"bare loop, batches of {batch}", rate, "tasks/s"))
    return figures


async def _loop(store: Store, queue: str, count: int, batch: int) -> float:
    ids = IdSource(lambda: time.time_ns() // 1_000_000, os.urandom)
    await _fill(store, queue, count, ids)
    shares = [QueueShare(queue, batch)]
    settled, acks = 0, list[Change]()
    begin = time.perf_counter()
    while True:
        request = Reserve(
            claim_id=ids.claim_id(),
            worker_id="bench",
            shares=shares,
            max_tasks=batch,
            lease_ms=30_000,
            types=frozenset({"bench.noop"}),
        )
        reserved = await store.reserve(request, acks)
        settled += sum(verdict.applied for verdict in reserved.verdicts)
        if not reserved.tasks:
            return settled / (time.perf_counter() - begin)
        acks = [lifecycle.ack(task.task_id, task.token, _RESULT) for task in reserved.tasks]


async def _fill(store: Store, queue: str, count: int, ids: IdSource) -> None:
    place = await store.placement()

    def task() -> NewTask:
        return NewTask(task_id=ids.task_id(place(queue, None)), type="bench.noop", queue=queue, payload=_PAYLOAD)

    for start in range(0, count, MAX_BATCH):
        await store.enqueue([task() for _ in range(min(MAX_BATCH, count - start))])
