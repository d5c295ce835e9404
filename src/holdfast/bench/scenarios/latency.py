"""How soon an idle worker starts a task, how late tasks due at one moment start, and what idling costs."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.app import Holdfast
from holdfast.bench.figures import Figure, percentile
from holdfast.bench.processes import MeasuredProcess
from holdfast.bench.setting import Setting, finished
from holdfast.bench.tasks import BenchTasks
from holdfast.core.task import Task
from holdfast.stores.contract import Store

_SCENARIO = "idle"
_SETTLE_S = 1.0


async def measure(setting: Setting) -> list[Figure]:
    """All three with one worker."""
    with setting.tasks(_SCENARIO) as (app, tasks), setting.worker(_SCENARIO) as worker:
        async with setting.store(_SCENARIO) as store:
            await _warm_up(store, tasks, worker)
            figures = await _idle(setting, worker)
            figures += await _pickup(setting, store, tasks, worker)
            return figures + await _due(setting, store, app, tasks, worker)


async def _warm_up(store: Store, tasks: BenchTasks, worker: MeasuredProcess) -> None:
    handle = await tasks.started.aenqueue()
    await finished(store, [handle.task_id], worker)
    await asyncio.sleep(_SETTLE_S)


async def _idle(setting: Setting, worker: MeasuredProcess) -> list[Figure]:
    begin, used = time.perf_counter(), worker.cpu_seconds()
    await asyncio.sleep(setting.sizes.idle_s)
    share = 100 * (worker.cpu_seconds() - used) / (time.perf_counter() - begin)
    return [
        Figure("idle_cpu", "processor share of an idle worker", share, "% of a core"),
        Figure("idle_memory", "memory of an idle worker", worker.memory_mb(), "MB"),
    ]


async def _pickup(setting: Setting, store: Store, tasks: BenchTasks, worker: MeasuredProcess) -> list[Figure]:
    """From the moment when enqueue returned to the first line of the task, and from when it was called."""
    called, returned, task_ids = list[float](), list[float](), list[str]()
    for _ in range(setting.sizes.pickups):
        await asyncio.sleep(random.uniform(0.01, 0.06))  # noqa: S311
        called.append(time.time())
        handle = await tasks.started.aenqueue()
        returned.append(time.time())
        task_ids.append(handle.task_id)
    begun = [_begun(task) for task in await finished(store, task_ids, worker)]
    waits = [1000 * max(0.0, start - moment) for start, moment in zip(begun, returned, strict=True)]
    whole = [1000 * (start - moment) for start, moment in zip(begun, called, strict=True)]
    return [
        Figure("pickup_p50", "idle pickup after enqueue, p50", percentile(waits, 0.50), "ms"),
        Figure("pickup_p99", "idle pickup after enqueue, p99", percentile(waits, 0.99), "ms"),
        Figure("pickup_whole_p50", "enqueue call to start, p50", percentile(whole, 0.50), "ms"),
        Figure("pickup_whole_p99", "enqueue call to start, p99", percentile(whole, 0.99), "ms"),
    ]


async def _due(
    setting: Setting, store: Store, app: Holdfast, tasks: BenchTasks, worker: MeasuredProcess
) -> list[Figure]:
    """Many tasks with one due moment ahead: how late each started, and whether one was early."""
    due = datetime.now(UTC) + timedelta(seconds=setting.sizes.due_in_s)
    at_once = tasks.started.using(run_at=due)
    handles = await app.aenqueue_many(at_once.prepare() for _ in range(setting.sizes.due))
    ended = await finished(store, [handle.task_id for handle in handles], worker)
    late = [1000 * _begun(task) - task.run_at_ms for task in ended]
    title = f"{setting.sizes.due:,} due at once"
    return [
        Figure("due_earliest", f"{title}, earliest start", min(late), "ms"),
        Figure("due_p50", f"{title}, lateness p50", percentile(late, 0.50), "ms"),
        Figure("due_p99", f"{title}, lateness p99", percentile(late, 0.99), "ms"),
    ]


def _begun(task: Task) -> float:
    return msgspec.json.decode(task.result or b"0", type=float)
