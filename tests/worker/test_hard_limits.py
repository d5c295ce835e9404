"""Real workers whose tasks run too long: those are stopped, their neighbours are not harmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from tests.support import alive, eventually, run_worker
from tests.worker.apps.unruly import make_cpu_app
from tests.worker.helpers import enqueue, enqueue_many, in_state, outcomes

APP = "tests.worker.apps.unruly:cpu_app"

ON_SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def unruly(url: str) -> Iterator[Holdfast]:
    with make_cpu_app(url) as app:
        yield app


@pytest.mark.parametrize("name", ["spins", "spins_in_loop"])
def test_a_task_that_spins_is_ended_by_its_hard_limit_and_its_neighbours_are_released(
    unruly: Holdfast, url: str, name: str
) -> None:
    with run_worker(APP, url, "--lease", "60s", "--cpu-processes", "1") as worker:
        neighbours = [enqueue(unruly, "sleeps", 1.5), enqueue(unruly, "sleeps_in_thread", 1.5)]
        for task in neighbours:
            in_state(task, State.CLAIMED)
        spinning = enqueue(unruly, name)
        assert in_state(spinning, State.DEAD_LETTERED).reason == "timed_out"
        (attempt,) = spinning.history()
        assert attempt.outcome == "timed_out"
        assert attempt.ended_at_ms - attempt.started_at_ms >= 1_000
        assert attempt.error is not None
        assert attempt.error.type == "holdfast.errors.TimedOut"
        assert "hard limit of 1s" in attempt.error.message
        for task in neighbours:
            assert in_state(task, State.SUCCEEDED).attempt == 1
            assert outcomes(task) == ["released", "succeeded"]
        assert "starting another one in" not in worker.output()  # no backoff, no slow start


@ON_SQLITE
def test_what_the_killed_process_has_started_is_killed_too(unruly: Holdfast, url: str, tmp_path: Path) -> None:
    started = tmp_path / "pid"
    with run_worker(APP, url, "--cpu-processes", "1"):
        spinning = enqueue(unruly, "starts_another", str(started))
        in_state(spinning, State.DEAD_LETTERED)
        eventually(lambda: not alive(int(started.read_text())))


@ON_SQLITE
def test_a_type_of_its_own_process_is_killed_alone(unruly: Holdfast, url: str) -> None:
    with run_worker(APP, url, "--lease", "60s", "--cpu-processes", "1"):
        neighbour = enqueue(unruly, "sleeps_in_thread", 2.0)
        in_state(neighbour, State.CLAIMED)
        spinning = unruly.task_types["spins_alone"].using(hard_timeout="1s").enqueue()
        in_state(spinning, State.DEAD_LETTERED)
        in_state(neighbour, State.SUCCEEDED)
        assert outcomes(neighbour) == ["succeeded"]


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_no_lease_is_lost_by_tasks_that_sleep_in_c_and_keep_the_gil(unruly: Holdfast, url: str, count: int) -> None:
    """Threads and coroutines alike: while one of them sleeps, nothing else moves in that process."""
    tasks = enqueue_many(unruly, count // 2, "sleeps_in_c", 0.3) + enqueue_many(
        unruly, count // 2, "sleeps_in_c_in_loop", 0.3
    )
    with run_worker(APP, url, "--lease", "2s", "--processes", "2", "--concurrency", str(count)) as worker:
        for task in tasks:
            in_state(task, State.SUCCEEDED, timeout=5 * count)
        assert {tuple(outcomes(task)) for task in tasks} == {("succeeded",)}
        assert "lease ran out" not in worker.output()


@ON_SQLITE
def test_a_cancelled_task_that_is_alone_and_goes_on_is_ended(unruly: Holdfast, url: str) -> None:
    with run_worker(APP, url, "--lease", "1s", "--cpu-processes", "1"):
        task = enqueue(unruly, "ignores_alone")
        in_state(task, State.CLAIMED)
        task.cancel("changed my mind")
        assert in_state(task, State.CANCELLED).reason == "changed my mind"
        assert outcomes(task) == ["cancelled"]


@ON_SQLITE
def test_tasks_for_processes_run_one_at_a_time_in_processes_of_their_own(
    unruly: Holdfast, url: str, tmp_path: Path
) -> None:
    log = tmp_path / "runs"
    tasks = enqueue_many(unruly, 6, "where_alone", str(log), 0.1)
    other = enqueue(unruly, "where", str(tmp_path / "other"))
    with run_worker(APP, url, "--cpu-processes", "2") as worker:
        pids = {task.result(20) for task in tasks}
        assert other.result(20) not in pids
        eventually(lambda: len(worker.children()) == 3, 20)
        assert pids <= set(worker.children())
    running: set[str] = set()
    for what, pid, _ in (line.split() for line in log.read_text().splitlines()):
        assert (pid in running) is (what == "end"), "two at once in a process"
        running ^= {pid}
