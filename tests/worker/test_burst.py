"""`--burst`: works until nothing is left, then ends."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from tests.support import run_holdfast
from tests.worker.helpers import APP, enqueue, enqueue_many, outcomes


def test_a_burst_does_what_is_due_and_leaves_what_is_not(jobs: Holdfast, url: str) -> None:
    plain = enqueue_many(jobs, 20, "add", 1, 2)
    parents = enqueue_many(jobs, 3, "passes_on")
    due = jobs.task_types["add"].using(delay="10ms").enqueue(3, 4)
    retried = enqueue(jobs, "flaky", 1)
    later = jobs.task_types["add"].using(delay="1h").enqueue(5, 6)
    others = Holdfast(url)
    stranger = others.task(name="nobody.knows")(lambda: None).enqueue()
    ended = run_holdfast("worker", APP, "--burst", "--processes", "2", url=url)
    assert ended.returncode == 0, ended.stderr
    assert "nothing is left to do: stopping" in ended.stderr
    for task in [*plain, *parents, due, retried]:
        assert task.status().state is State.SUCCEEDED
    for parent in parents:
        assert jobs.handle(parent.result(5), int).status().state is State.SUCCEEDED
    assert outcomes(retried) == ["failed", "succeeded"]
    assert (later.status().state, stranger.status().state) == (State.SCHEDULED, State.READY)
    others.close()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_burst_with_nothing_to_do_ends_too_and_one_with_a_long_task_waits_for_it(jobs: Holdfast, url: str) -> None:
    assert run_holdfast("worker", APP, "--burst", url=url).returncode == 0
    long_one = enqueue(jobs, "sleeps_in_thread", 1.5)
    assert run_holdfast("worker", APP, "--burst", url=url).returncode == 0
    assert outcomes(long_one) == ["succeeded"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_burst_cannot_also_reload(url: str) -> None:
    ended = run_holdfast("worker", APP, "--burst", "--reload", url=url)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
