"""Producers and workers that know nothing but a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from tests.remote.holdfast_server import HoldfastServer, holdfast_server
from tests.support import eventually
from tests.worker.apps.jobs import make_app
from tests.worker.helpers import enqueue, enqueue_many, in_state, outcomes, working

WORKER = ("work:*",)
PRODUCER = ("enqueue:*", "read")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HoldfastServer]:
    with holdfast_server(tmp_path, f"sqlite:///{tmp_path}/tasks.db") as server:
        yield server


@pytest.fixture
def jobs(server: HoldfastServer) -> Iterator[Holdfast]:
    with make_app(server.url(*PRODUCER)) as app:
        yield app


@pytest.fixture
def behind(server: HoldfastServer) -> Iterator[Holdfast]:
    """The same app on the store itself, for those who look after it."""
    with make_app(server.store_url) as app:
        yield app


def test_a_worker_through_a_server_runs_tasks(jobs: Holdfast, server: HoldfastServer) -> None:
    added = enqueue(jobs, "add", 2, 3)
    threaded = enqueue(jobs, "add_in_thread", 4, 5)
    flaky = enqueue(jobs, "flaky", 2)
    hopeless = enqueue(jobs, "hopeless")
    with working(server.url(*WORKER), "--log-tasks", "none") as worker:
        assert (added.result(timeout=20), threaded.result(timeout=20), flaky.result(timeout=20)) == (5, 9, 3)
        assert in_state(hopeless, State.DEAD_LETTERED).reason == "max_attempts"
        late = enqueue(jobs, "add", 6, 7)  # rings at a worker that waits
        assert late.result(timeout=20) == 13
        assert worker.stop() == 0
        assert "Traceback" not in worker.output()
        assert "ERROR" not in worker.output()


def test_the_tasks_of_a_killed_worker_are_run_by_another(jobs: Holdfast, server: HoldfastServer) -> None:
    """The server itself takes them away from the dead: its token lets no worker do that."""
    url = server.url(*WORKER)
    held = enqueue_many(jobs, 5, "sleeps", 60)
    with working(url, "--lease", "2s") as worker:
        for task in held:
            in_state(task, State.CLAIMED)
        worker.kill_all()
    with working(url, "--lease", "2s"):
        for task in held:
            eventually(lambda task=task: (found := task.status()).state is State.CLAIMED and found.attempt == 2, 20)  # type: ignore[misc]
    assert {outcomes(task)[0] for task in held} == {"lease_expired"}


def test_a_token_that_may_not_work_is_told_so(server: HoldfastServer) -> None:
    with working(server.url("read")) as worker:
        assert worker.process.wait(20) != 0
        assert "needs the scope work" in worker.output()
        assert "Traceback" not in worker.output()


@pytest.mark.long
def test_ten_thousand_tasks_survive_a_server_that_is_killed(
    jobs: Holdfast, behind: Holdfast, server: HoldfastServer
) -> None:
    """Killed twice while tasks are recorded and run: none is lost, none is made twice, and everybody goes on."""
    recorded: list[str] = []

    def produce() -> None:
        add = jobs.task_types["add"]
        for number in range(100):
            recorded.extend(task.task_id for task in jobs.enqueue_many(add.prepare(number, n) for n in range(100)))

    producer = threading.Thread(target=produce)
    with working(server.url(*WORKER), "--processes", "2") as worker:
        producer.start()
        for share in (0.2, 0.6):
            eventually(lambda share=share: len(recorded) >= 10_000 * share, 60)  # type: ignore[misc]
            server.kill()
            server.start()
        producer.join(120)
        assert len(set(recorded)) == 10_000
        eventually(lambda: _counts(behind).get(State.SUCCEEDED) == 10_000, 120)
        assert _counts(behind) == {State.SUCCEEDED: 10_000}
        assert worker.process.poll() is None


def _counts(app: Holdfast) -> dict[State, int]:
    [queue] = app.queues.list()
    return {state: number for state, number in queue.states.items() if number}
