"""What a task has started is gone before another worker may have the task."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, TaskHandle
from holdfast.core.task import State
from tests.support import WorkerProcess, alive, eventually, run_worker
from tests.worker.apps.leaving import make_app
from tests.worker.helpers import enqueue, in_state, outcomes

APP = "tests.worker.apps.leaving:app"


@pytest.fixture
def leaving(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app


def _begun(path: Path) -> int:
    """The pid of the program that a task has started, once it holds its lock."""
    return int(eventually(lambda: path.exists() and path.read_text().strip(), 20, "the program runs"))


def _is_released(task: TaskHandle[Any]) -> bool:
    return outcomes(task) == ["released"]


def _nothing_holds(path: Path) -> None:
    """As the next copy of the program would find it, at this very moment."""
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("name", ["runs_a_program", "runs_a_program_in_loop", "forks"])
def test_a_program_is_dead_when_a_stopping_worker_hands_its_task_back(
    leaving: Holdfast, url: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "lock"
    with run_worker(APP, url, "--grace", "0s", "--lease", "60s") as worker:
        task = enqueue(leaving, name, str(path))
        program = _begun(path)
        worker.signal(signal.SIGTERM)
        eventually(lambda: _is_released(task), 20, "it is released")
        _nothing_holds(path)
        assert not alive(program)
        assert worker.process.wait(20) == 0


@pytest.mark.parametrize("name", ["runs_a_program", "runs_a_program_in_loop", "forks"])
def test_a_program_is_dead_when_an_orphaned_child_hands_its_task_back(
    leaving: Holdfast, url: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "lock"
    with run_worker(APP, url, "--lease", "60s") as worker:
        task = enqueue(leaving, name, str(path))
        program, (child,) = _begun(path), worker.children()
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda: _is_released(task), 30, "it is released")
        _nothing_holds(path)
        assert not alive(program)
        assert not alive(child)


def test_a_program_is_dead_when_the_attempt_of_a_killed_child_is_over(
    leaving: Holdfast, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    with run_worker(APP, url, "--lease", "60s") as worker:
        task = enqueue(leaving, "runs_a_program", str(path))
        program, (child,) = _begun(path), worker.children()
        os.kill(child, signal.SIGKILL)
        eventually(lambda: outcomes(task) == ["worker_lost"], 20, "the loss is noticed")
        assert not alive(program)


def test_what_tasks_have_left_behind_goes_with_their_process(leaving: Holdfast, url: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with run_worker(APP, url) as worker:
        assert enqueue(leaving, "leaves_a_program", str(path)).result("20s") is None
        program = _begun(path)
        assert alive(program)
        assert worker.stop() == 0
        assert not alive(program)


def test_an_orphan_whose_lifespan_is_slow_to_close_runs_nothing_that_it_has_released(url: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with make_app(url) as app, run_worker("tests.worker.apps.leaving:slow_app", url, "--lease", "60s") as worker:
        task = enqueue(app, "sleeps_in_thread", str(path))
        (child,) = _children_of(worker)
        assert _begun(path) == child
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda: _is_released(task), 30, "it is released")
        assert not alive(child)
        _nothing_holds(path)


def test_an_orphan_with_a_blocked_event_loop_hands_its_task_back(leaving: Holdfast, url: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with run_worker(APP, url, "--lease", "2s") as worker:
        task = enqueue(leaving, "sleeps_in_loop", str(path))
        (child,) = _children_of(worker)
        assert _begun(path) == child
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda: _is_released(task), 30, "it is released")
        assert not alive(child)
        assert in_state(task, State.READY).attempt == 0


def _children_of(worker: WorkerProcess) -> list[int]:
    return eventually(worker.children, 20, "the child runs")
