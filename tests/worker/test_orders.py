"""How many tasks at once: changed while a worker runs, by signal or from the command line."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from holdfast.stores.contract import WorkerOrders, WorkerRecord
from holdfast.testing.clock import SteppedClock
from holdfast.worker.options import MAX_CONCURRENCY
from holdfast.worker.orders import Concurrency
from holdfast.worker.rate import Rate
from tests.support import eventually, run_holdfast
from tests.worker.helpers import enqueue_many, in_state, working

T = TypeVar("T")


def listed(jobs: Holdfast) -> list[WorkerRecord]:
    return asyncio.run(_look(jobs.store.workers))


def claimed(jobs: Holdfast) -> int:
    counts = asyncio.run(_look(jobs.store.counts))
    return sum(queue.states.get(State.CLAIMED, 0) for queue in counts)


async def _look(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def test_the_concurrency_of_a_running_worker_can_be_changed(jobs: Holdfast, url: str) -> None:
    enqueue_many(jobs, 30, "sleeps", 600.0)
    with working(url, "--concurrency", "2", "--lease", "1s", "--grace", "0s") as worker:
        eventually(lambda: claimed(jobs) == 2, 20)
        (known,) = listed(jobs)
        ordered = run_holdfast("workers", "concurrency", known.worker_id[:-2], "5", url=url)
        assert (ordered.returncode, "5 tasks at once" in ordered.stdout) == (0, True)
        eventually(lambda: claimed(jobs) == 5, 20)
        worker.signal(signal.SIGTTIN)
        eventually(lambda: claimed(jobs) == listed(jobs)[0].concurrency == listed(jobs)[0].running == 6, 20)
        shown = json.loads(run_holdfast("workers", "show", known.host, "--json", url=url).stdout)
        assert (shown["pid"], shown["running"], len(shown["tasks"])) == (worker.pid, 6, 6)
        assert {task["type"] for task in shown["tasks"]} == {"sleeps"}
        assert shown["memory_bytes"] > 30 * 2**20
        worker.signal(signal.SIGTTOU)
        assert run_holdfast("workers", "concurrency", "--all", "1", url=url).returncode == 0
        eventually(lambda: listed(jobs)[0].concurrency == 1, 20)
        assert claimed(jobs) == 6  # what runs goes on


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_children_that_start_later_begin_with_the_current_concurrency(jobs: Holdfast, url: str) -> None:
    with working(url, "--concurrency", "1", "--max-age", "1s", "--grace", "0s") as worker:
        worker.signal(signal.SIGTTIN)
        eventually(lambda: "its successor is starting" in worker.output(), 20)
        eventually(lambda: len(worker.children()) == 1, 20)
        for task in enqueue_many(jobs, 2, "sleeps", 600.0):
            in_state(task, State.CLAIMED)


def test_who_changed_it_last_has_decided_within_what_is_possible() -> None:
    told: list[int] = []
    concurrency = Concurrency(10, told.append)
    concurrency.heed(None)
    concurrency.heed(WorkerOrders(concurrency=20))
    concurrency.step(1)
    concurrency.heed(WorkerOrders(concurrency=20))  # comes with every heartbeat
    concurrency.heed(WorkerOrders())
    concurrency.heed(WorkerOrders(concurrency=10 * MAX_CONCURRENCY))
    concurrency.step(1)
    concurrency.heed(WorkerOrders(concurrency=1))
    concurrency.step(-1)
    assert told == [20, 21, 10, MAX_CONCURRENCY, 1]


def test_the_rate_is_that_of_the_last_minute() -> None:
    clock = SteppedClock()
    rate = Rate(clock)
    for _ in range(120):
        rate.count(3)
        rate.count(2)
        clock.advance(1_000)
    assert rate.last_minute() == 59 * 5
    clock.advance(60_000)
    assert rate.last_minute() == 0
