"""How soon a worker under full load starts an urgent task, with very many others waiting, and what becomes of those."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

import msgspec

from holdfast.bench.figures import Figure, percentile
from holdfast.bench.filling import fill, new_ids
from holdfast.bench.processes import MeasuredProcess
from holdfast.bench.setting import Setting, finished
from holdfast.bench.tasks import BenchTasks
from holdfast.core.priority import ORDERS, Order, step_of
from holdfast.core.task import State
from holdfast.stores import documents
from holdfast.stores.contract import Store

_HIGH: Final = 10
_POLL_S: Final = 0.05
#: Between one urgent task and the next.
_SHORTEST_S, _LONGEST_S = 0.005, 0.015


async def measure(setting: Setting) -> list[Figure]:
    """In both orders that a queue can have."""
    return [figure for order in ORDERS for figure in await _measure(setting, order)]


async def _measure(setting: Setting, order: Order) -> list[Figure]:
    scenario = f"priorities-{order}"
    queue = setting.queue(scenario)
    with setting.tasks(scenario) as (_, tasks):
        async with setting.store(scenario) as store:
            await documents.set_step(store, queue, step_of(order))
            # Enough for the tasks that the worker drains meanwhile, at a rate that no store reaches.
            await fill(store, queue, 3 * setting.sizes.low, new_ids())
            with setting.worker(scenario) as worker:
                await _under_load(store, queue, worker)
                begin, done_before = time.perf_counter(), await _count(store, queue, State.SUCCEEDED)
                waits = await _pickups(setting, store, tasks, worker)
                elapsed, done = time.perf_counter() - begin, await _count(store, queue, State.SUCCEEDED) - done_before
                left = await _count(store, queue, State.READY)
    name, title = f"priority_{order}", f"beside {setting.sizes.low:,} low ones, {order}"
    return [
        Figure(f"{name}_p50", f"pickup of high ones {title}, p50", percentile(waits, 0.50), "ms"),
        Figure(f"{name}_p99", f"pickup of high ones {title}, p99", percentile(waits, 0.99), "ms"),
        Figure(f"{name}_low", "the low ones meanwhile", (done - len(waits)) / elapsed, "tasks/s"),
        Figure(f"{name}_left", "low ones that still waited at the end", left, "tasks"),
    ]


async def _under_load(store: Store, queue: str, worker: MeasuredProcess) -> None:
    while not await _count(store, queue, State.SUCCEEDED):
        worker.check()
        await asyncio.sleep(_POLL_S)


async def _pickups(setting: Setting, store: Store, tasks: BenchTasks, worker: MeasuredProcess) -> list[float]:
    """From the moment when enqueue returned to the first line of the task, in milliseconds."""
    urgent = tasks.started.using(priority=_HIGH)
    returned, task_ids = list[float](), list[str]()
    for _ in range(setting.sizes.pickups):
        await asyncio.sleep(random.uniform(_SHORTEST_S, _LONGEST_S))  # noqa: S311
        handle = await urgent.aenqueue()
        returned.append(time.time())
        task_ids.append(handle.task_id)
    ended = await finished(store, task_ids, worker)
    begun = [msgspec.json.decode(task.result or b"0", type=float) for task in ended]
    return [1000 * max(0.0, start - moment) for start, moment in zip(begun, returned, strict=True)]


async def _count(store: Store, queue: str, state: State) -> int:
    return sum(counts.states.get(state, 0) for counts in await store.counts() if counts.queue == queue)
