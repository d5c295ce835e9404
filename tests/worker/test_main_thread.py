"""A `def` task with `run="process"` runs in the main thread of its process, and is interrupted there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from tests.support import run_worker
from tests.worker.apps.alone import make_app
from tests.worker.helpers import enqueue, in_state

APPS = pytest.mark.parametrize("app", ["app", "app_with_middleware"])


@pytest.fixture
def alone(url: str) -> Iterator[Holdfast]:
    with make_app(url) as made:
        yield made


@APPS
def test_a_task_may_do_what_only_the_main_thread_may(alone: Holdfast, url: str, app: str) -> None:
    with run_worker(f"tests.worker.apps.alone:{app}", url, "--cpu-processes", "1"):
        for handle in [enqueue(alone, "handles_signals") for _ in range(3)]:
            assert handle.result(30) == [True, True, True]
        assert enqueue(alone, "in_the_loop").result(30) is False


@APPS
def test_a_time_limit_ends_what_waits_in_the_kernel(alone: Holdfast, url: str, app: str) -> None:
    """The process goes on: it is neither killed by a hard limit nor recycled."""
    limited = {name: alone.task_types[name].using(timeout="300ms") for name in ("sleeps", "cleans_up")}
    with run_worker(f"tests.worker.apps.alone:{app}", url, "--cpu-processes", "1") as worker:
        sleeping = limited["sleeps"].enqueue(60.0)
        task = in_state(sleeping, State.DEAD_LETTERED)
        assert task.reason == "timed_out"
        (attempt,) = sleeping.history()
        assert attempt.error is not None
        assert attempt.error.message == "ran longer than its time limit of 300ms"
        assert "time.sleep(seconds)" in attempt.error.traceback
        assert "_woken" not in attempt.error.traceback
        assert limited["cleans_up"].enqueue(60.0).result(30) == "cleaned up"
        assert "starting another one" not in worker.output()


def test_a_cancelled_task_does_not_wait_for_the_kernel(alone: Holdfast, url: str) -> None:
    with run_worker("tests.worker.apps.alone:app", url, "--cpu-processes", "1") as worker:
        sleeping = enqueue(alone, "sleeps", 60.0)
        in_state(sleeping, State.CLAIMED)
        sleeping.cancel("enough")
        assert in_state(sleeping, State.CANCELLED).reason == "enough"
        assert "was killed" not in worker.output()
        assert enqueue(alone, "handles_signals").result(30) == [True, True, True]
