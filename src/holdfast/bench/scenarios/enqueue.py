"""How fast producers are, each task durable before the call returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from holdfast.app import Holdfast
from holdfast.bench.figures import Figure
from holdfast.bench.setting import Setting
from holdfast.bench.tasks import BenchTasks

_PRODUCERS = 50
_THREADS = 16


async def measure(setting: Setting) -> list[Figure]:
    """One by one in both faces, concurrently in both, and in bulk."""
    sizes = setting.sizes
    with setting.tasks("enqueue") as (app, tasks):
        await tasks.noop.aenqueue(0, "opens the store")
        return [
            await _rate(
                "one_sync", "enqueue one by one, sync", sizes.singles, lambda n: _off_loop(_one_by_one, tasks, n)
            ),
            await _rate("one_async", "enqueue one by one, async", sizes.singles, lambda n: _each(tasks, n)),
            await _rate(
                "tasks", f"enqueue, {_PRODUCERS} coroutines", sizes.concurrent, lambda n: _coroutines(tasks, n)
            ),
            await _rate(
                "threads", f"enqueue, {_THREADS} threads", sizes.concurrent, lambda n: _off_loop(_threads, tasks, n)
            ),
            await _rate("bulk", "enqueue in bulk", sizes.tasks, lambda n: _bulk(app, tasks, n)),
        ]


async def _rate(name: str, title: str, count: int, run: Callable[[int], Awaitable[object]]) -> Figure:
    begin = time.perf_counter()
    await run(count)
    rate = count / (time.perf_counter() - begin)
    return Figure(f"enqueue_{name}", title, rate, "tasks/s")


async def _off_loop(run: Callable[[BenchTasks, int], None], tasks: BenchTasks, count: int) -> None:
    await asyncio.to_thread(run, tasks, count)


def _one_by_one(tasks: BenchTasks, count: int) -> None:
    for number in range(count):
        tasks.noop.enqueue(number, "some text")


async def _each(tasks: BenchTasks, count: int) -> None:
    for number in range(count):
        await tasks.noop.aenqueue(number, "some text")


async def _coroutines(tasks: BenchTasks, count: int) -> None:
    await asyncio.gather(*(_each(tasks, count // _PRODUCERS) for _ in range(_PRODUCERS)))


def _threads(tasks: BenchTasks, count: int) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(_one_by_one, tasks, count // _THREADS) for _ in range(_THREADS)]:
            done.result()


async def _bulk(app: Holdfast, tasks: BenchTasks, count: int) -> None:
    await app.aenqueue_many(tasks.noop.prepare(number, "some text") for number in range(count))
