"""An old and a new worker together: tasks for the new one wait for it, hold up no other and use up no attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.admin.doctor import examine
from holdfast.core import lifecycle
from holdfast.core.task import State
from tests.support import eventually, run_worker
from tests.worker.apps.deploys import make_new

OLD, NEW = "tests.worker.apps.deploys:old", "tests.worker.apps.deploys:new"
UNKNOWN = 10_000


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    with make_new(url) as made:
        yield made


def count(app: Holdfast, state: State) -> int:
    return sum(queue.states.get(state, 0) for queue in app.queues.list())


def doctor(app: Holdfast) -> str:
    return "\n".join(finding.text for finding in asyncio.run(examine(app.store)))


def test_tasks_of_a_type_that_only_the_new_worker_knows_wait_for_it(app: Holdfast, url: str) -> None:
    known, added = app.task_types["known"], app.task_types["added"]
    waiting = app.enqueue_many(added.prepare(number) for number in range(UNKNOWN))
    with run_worker(OLD, url) as old:
        # Behind all of them, one by one: each is found at once although what stands in front is not for this worker.
        for number in range(20):
            assert known.enqueue(number).result(20) == number
        batch = app.enqueue_many(known.prepare(number) for number in range(1_000))
        assert batch[-1].result(20) == 999
        eventually(lambda: count(app, State.SUCCEEDED) == 1_020, 20)
        assert count(app, State.READY) == UNKNOWN
        assert waiting[0].why() == "The only worker of queue default does not know the type added."
        assert f"{UNKNOWN:,} waiting tasks of type added, which no running worker of queue default knows" in doctor(app)
        with run_worker(NEW, url):
            assert waiting[-1].result(60) == UNKNOWN - 1
            eventually(lambda: count(app, State.READY) == 0, 60)
            assert known.enqueue(7).result(20) == 7
            assert "no running worker" not in doctor(app)
        assert old.stop() == 0
    assert {attempt.worker_id for attempt in waiting[0].history()} != {
        attempt.worker_id for attempt in batch[0].history()
    }
    assert count(app, State.SUCCEEDED) == UNKNOWN + 1_021


def test_a_task_with_the_signature_of_the_new_worker_waits_for_it_without_using_its_only_attempt(
    app: Holdfast, url: str
) -> None:
    resize = app.task_types["resize"].enqueue(3, height=4)
    with run_worker(OLD, url) as old:
        eventually(resize.history, 20)
        waiting = resize.status()
        assert (waiting.state, waiting.attempt) == (State.SCHEDULED, 0)
        assert [run.outcome for run in resize.history()] == ["bad_arguments"]
        assert "No worker has had the signature that its arguments need" in resize.why()
        assert "unknown field `height`" in resize.why()
        assert f"WARNING holdfast.task: resize[{resize.task_id}] not started: BadArguments: resize()" in old.output()
        old.stop()
    with run_worker(NEW, url):
        asyncio.run(app.store.apply([lifecycle.reschedule(resize.task_id, 0)]))
        assert resize.result(20) == 12
