"""How fast one worker, a supervisor and one child, empties a full queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.bench.figures import Figure
from holdfast.bench.setting import Setting, finished, look
from holdfast.core.task import State, Task
from holdfast.errors import TaskFailed
from holdfast.stores import documents

#: First come, first served: the first and the last to finish are among these many at either end.
_EDGE = 1_000


class Drained(NamedTuple):
    """One emptied queue: its rate, and the worker's memory early on and at the end."""

    rate: float
    memory_before_mb: float
    memory_after_mb: float


async def measure(setting: Setting, best_bare_rate: float) -> list[Figure]:
    """The drain rate, and its share of what the store alone can do."""
    drained = await drain(setting, "drain", setting.sizes.tasks)
    share = 100 * drained.rate / best_bare_rate
    return [
        Figure("drain", f"drain of {setting.sizes.tasks:,} tasks, one child", drained.rate, "tasks/s"),
        Figure("drain_share", "drain as a share of the bare loop", share, "%"),
        Figure("drain_memory", "memory of the worker after the drain", drained.memory_after_mb, "MB"),
    ]


async def measure_beside(setting: Setting, figures: Sequence[Figure]) -> list[Figure]:
    """The same on the store to compare with."""
    count = setting.sizes.tasks
    spread = await drain(setting, "spread", count, spread=True)
    one = await drain(dataclasses.replace(setting, url=setting.beside), "drain", count)
    rate = next(figure.value for figure in figures if figure.name == "drain")
    return [
        Figure("drain_spread", "drain of a queue in all partitions", spread.rate, "tasks/s"),
        Figure("drain_beside", "drain of one server in the same run", one.rate, "tasks/s"),
        Figure("drain_beside_share", "drain as a share of one server", 100 * rate / one.rate, "%"),
        Figure("drain_spread_share", "the same, queue in all partitions", 100 * spread.rate / one.rate, "%"),
    ]


async def drain(setting: Setting, scenario: str, count: int, *, spread: bool = False) -> Drained:
    """Fills the queue, starts a worker, and waits for the last task."""
    if spread:
        async with setting.store(scenario) as store:
            width = len(await store.partitions())
            divided = (await documents.partition_map(store)).with_spread(setting.queue(scenario), width)
            await documents.put_partition_map(store, divided)
    with setting.tasks(scenario) as (app, tasks):
        handles = await app.aenqueue_many(tasks.noop.prepare(number, "some text") for number in range(count))
    task_ids = [handle.task_id for handle in handles]
    async with setting.store(scenario) as store:
        with setting.worker(scenario) as worker:
            await finished(store, task_ids[:1], worker)
            before_mb = worker.memory_mb()
            # One id first: asking for a thousand again and again would slow down what is measured.
            await finished(store, task_ids[-1:], worker)
            last = await finished(store, task_ids[-_EDGE:], worker)
            after_mb = worker.memory_mb()
        first = await look(store, task_ids[:_EDGE])
    return Drained(_rate(first, last, count), before_mb, after_mb)


def _rate(first: Sequence[Task], last: Sequence[Task], count: int) -> float:
    """Tasks per second between the first and the last end, by the store's own clock."""
    failed = [task for task in (*first, *last) if task.state is not State.SUCCEEDED]
    if failed:
        raise TaskFailed(f"task {failed[0].task_id} of the bench is {failed[0].state}: {failed[0].reason}")
    begin_ms = min(_end_ms(task) for task in first)
    with_the_first = sum(_end_ms(task) == begin_ms for task in first)
    elapsed_ms = max(_end_ms(task) for task in last) - begin_ms
    return max(count - with_the_first, 1) * 1000 / max(elapsed_ms, 1)


def _end_ms(task: Task) -> int:
    return task.finished_at_ms or 0
