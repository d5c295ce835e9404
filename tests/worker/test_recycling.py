"""Children that are replaced after a number of tasks, a time or an amount of memory, without losing anything."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from holdfast.worker.recycle import resident_bytes
from tests.support import WorkerProcess, eventually, run_worker
from tests.worker.apps.unruly import make_app
from tests.worker.helpers import enqueue, enqueue_many, in_state, outcomes

APP = "tests.worker.apps.unruly:app"
MEGABYTE = 2**20

ON_SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def unruly(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app


class Samples:
    """What the processes of a worker used, looked at many times a second."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self.most_of_a_child = 0
        self.most_of_all = 0
        self.pids: set[int] = set()
        self.fewest_children = 1_000

    def take(self) -> None:
        # /proc is read entry by entry: while that takes long, a child may go and its successor be missed.
        pids = self._worker.children() or self._worker.children()
        used = {pid: resident_bytes(pid) for pid in pids}
        self.pids |= used.keys()
        self.most_of_a_child = max(self.most_of_a_child, *used.values(), 0)
        self.most_of_all = max(self.most_of_all, sum(used.values()) + resident_bytes(self._worker.pid))
        self.fewest_children = min(self.fewest_children, len(used))


@contextmanager
def sampled(worker: WorkerProcess) -> Iterator[Samples]:
    samples, over = Samples(worker), threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            samples.take()

    eventually(lambda: "task types:" in worker.output(), 20)
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


@ON_SQLITE
@pytest.mark.parametrize("option", [("--max-tasks", "20"), ("--max-age", "1s")])
def test_children_are_replaced_and_nothing_is_lost_or_repeated(
    unruly: Holdfast, url: str, option: tuple[str, str]
) -> None:
    long_one = enqueue(unruly, "sleeps", 3.0)  # outlives the child that has it, and is let finish
    tasks = enqueue_many(unruly, 100, "sleeps", 0.1)
    with run_worker(APP, url, "--concurrency", "5", *option) as worker, sampled(worker) as samples:
        for task in [long_one, *tasks]:
            in_state(task, State.SUCCEEDED, timeout=60)
        deadline = time.monotonic() + 120
        # On a busy machine a child has run all of them before its successor has started.
        while len(samples.pids) < 3 and time.monotonic() < deadline:
            more = enqueue_many(unruly, 20, "sleeps", 0.1)
            tasks += more
            for task in more:
                in_state(task, State.SUCCEEDED, timeout=60)
        assert len(samples.pids) >= 3
        assert {tuple(outcomes(task)) for task in [long_one, *tasks]} == {("succeeded",)}
        assert samples.fewest_children >= 1
        assert "its successor is starting" in worker.output()
        assert "ERROR" not in worker.output()


@pytest.mark.parametrize("count", [9, pytest.param(200, marks=pytest.mark.long)])
def test_a_task_that_leaks_is_kept_within_the_memory_limit(unruly: Holdfast, url: str, count: int) -> None:
    """The limit is one of each child: after it is passed, nothing more is begun there."""
    tasks = enqueue_many(unruly, count, "leaks", 100)
    options = ("--concurrency", "1", "--max-memory", "400MB")
    with run_worker(APP, url, *options) as worker, sampled(worker) as samples:
        for task in tasks:
            in_state(task, State.SUCCEEDED, timeout=120)
    assert {tuple(outcomes(task)) for task in tasks} == {("succeeded",)}
    assert len(samples.pids) >= len(tasks) // 5
    print(f"MB at most: {samples.most_of_a_child / MEGABYTE:.0f} a child, {samples.most_of_all / MEGABYTE:.0f} in all")
    assert samples.most_of_a_child < 500 * MEGABYTE


@ON_SQLITE
def test_a_crash_during_a_replacement_is_made_up_for(unruly: Holdfast, url: str) -> None:
    tasks = enqueue_many(unruly, 60, "sleeps", 0.1)
    with run_worker(APP, url, "--concurrency", "3", "--max-tasks", "5", "--lease", "60s") as worker:
        eventually(lambda: len(worker.children()) == 2, 20)
        for pid in worker.children():
            os.kill(pid, 9)
        for task in tasks:
            in_state(task, State.SUCCEEDED, timeout=40)
    assert {outcome for task in tasks for outcome in outcomes(task)} <= {"succeeded", "worker_lost"}
