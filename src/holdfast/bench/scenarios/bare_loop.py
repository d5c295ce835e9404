"""How fast the store alone is: reserve and ack in one process, no worker. The limit of every worker."""

from __future__ import annotations

import time

from holdfast.bench.figures import Figure
from holdfast.bench.filling import NOOP, fill, new_ids
from holdfast.bench.setting import Setting
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change
from holdfast.stores.contract import MAX_BATCH, Reserve, Store

_RESULT = b"10"


async def measure(setting: Setting) -> list[Figure]:
    """The rate with batches of 100, and with batches as large as the worker's."""
    figures = []
    for batch in sorted({100, min(setting.sizes.concurrency, MAX_BATCH)}):
        scenario = f"bare-{batch}"
        queue = setting.queue(scenario)
        async with setting.store(scenario) as store:
            await fill(store, queue, setting.sizes.bare, new_ids())
            rate = await reserve_and_ack(store, queue, batch, NOOP)
        figures.append(Figure(f"bare_loop_{batch}", f"bare loop, batches of {batch}", rate, "tasks/s"))
    return figures


async def reserve_and_ack(store: Store, queue: str, batch: int, task_type: str) -> float:
    """Empties the queue; tasks settled per second."""
    ids = new_ids()
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
            types=frozenset({task_type}),
        )
        reserved = await store.reserve(request, acks)
        settled += sum(verdict.applied for verdict in reserved.verdicts)
        if not reserved.tasks:
            return settled / (time.perf_counter() - begin)
        acks = [lifecycle.ack(task.task_id, task.token, _RESULT) for task in reserved.tasks]
