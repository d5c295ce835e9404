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
from holdfast.worker.options import MAX_CONCURRENCY, Concurrency
from holdfast.worker.supervisor.pool import EventRate
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


def test_a_drained_worker_claims_nothing_until_it_is_resumed(jobs: Holdfast, url: str) -> None:
    (running,) = enqueue_many(jobs, 1, "sleeps", 600.0)
    with working(url, "--concurrency", "5", "--lease", "1s", "--grace", "0s"):
        in_state(running, State.CLAIMED)
        assert "claims no more tasks" in run_holdfast("workers", "drain", "--all", url=url).stdout
        eventually(lambda: listed(jobs)[0].status == "draining", 20)
        waiting = enqueue_many(jobs, 2, "sleeps", 600.0)
        beats = listed(jobs)[0].seen_at_ms
        eventually(lambda: listed(jobs)[0].seen_at_ms > beats, 20)  # it had time to claim them
        assert claimed(jobs) == 1
        assert run_holdfast("workers", "concurrency", "--all", "4", url=url).returncode == 0
        eventually(lambda: listed(jobs)[0].concurrency == 4, 20)
        assert (listed(jobs)[0].status, claimed(jobs)) == ("draining", 1)
        assert run_holdfast("workers", "resume", "--all", url=url).returncode == 0
        for task in waiting:
            in_state(task, State.CLAIMED)
        eventually(lambda: listed(jobs)[0].status == "running", 20)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_child_that_starts_later_is_drained_too(jobs: Holdfast, url: str) -> None:
    with working(url, "--concurrency", "1", "--lease", "1s", "--max-age", "2s", "--grace", "0s") as worker:
        eventually(lambda: bool(listed(jobs)), 20)
        assert run_holdfast("workers", "drain", "--all", url=url).returncode == 0
        eventually(lambda: listed(jobs)[0].status == "draining", 20)
        before = worker.output().count("its successor is starting")
        enqueue_many(jobs, 2, "sleeps", 600.0)
        eventually(lambda: worker.output().count("its successor is starting") > before + 1, 30)
        assert claimed(jobs) == 0


def test_a_worker_stops_gracefully_by_order(jobs: Holdfast, url: str) -> None:
    (task,) = enqueue_many(jobs, 1, "sleeps", 0.5)
    with working(url, "--concurrency", "5", "--lease", "1s", "--grace", "20s") as worker:
        in_state(task, State.CLAIMED)
        (known,) = listed(jobs)
        assert "stops from its next heartbeat" in run_holdfast("workers", "stop", known.worker_id, url=url).stdout
        eventually(lambda: listed(jobs) == [], 20)
        eventually(lambda: "on request: stopping; running tasks may finish for 20 s" in worker.output(), 20)
    in_state(task, State.SUCCEEDED)


def test_who_changed_it_last_has_decided_within_what_is_possible() -> None:
    told: list[int] = []
    concurrency = Concurrency(10, told.append)
    concurrency.apply(None)
    concurrency.apply(WorkerOrders(concurrency=20))
    concurrency.step(1)
    concurrency.apply(WorkerOrders(concurrency=20))  # comes with every heartbeat
    concurrency.apply(WorkerOrders())
    concurrency.apply(WorkerOrders(concurrency=10 * MAX_CONCURRENCY))
    concurrency.step(1)
    concurrency.apply(WorkerOrders(concurrency=1))
    concurrency.step(-1)
    assert told == [20, 21, 10, MAX_CONCURRENCY, 1]


def test_the_rate_is_that_of_the_last_minute() -> None:
    clock = SteppedClock()
    rate = EventRate(clock)
    for _ in range(120):
        rate.count(3)
        rate.count(2)
        clock.advance(1_000)
    assert rate.last_minute() == 59 * 5
    clock.advance(60_000)
    assert rate.last_minute() == 0
