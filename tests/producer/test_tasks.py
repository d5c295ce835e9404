"""`app.tasks`, `app.dead`, `app.workers` and `app.status_many`."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast import TaskHandle, TaskInfo
from holdfast.core import lifecycle
from holdfast.core.task import Failure, State
from holdfast.errors import BadName, BadOption, Refused, UnknownTask, UnknownWorker
from holdfast.stores import documents
from holdfast.stores.contract import MAX_BATCH, WorkerRecord
from tests.producer.setting import Setting

NOWHERE = "0" * 32


def ids(tasks: list[TaskInfo]) -> list[str]:
    return [task.task_id for task in tasks]


def test_tasks_are_listed_newest_first_and_filtered(setting: Setting) -> None:
    first, second = setting.double.enqueue(1), setting.double.enqueue(2)
    third = setting.quiet.using(queue="mail", delay="1h").enqueue(3)
    tasks = setting.app.tasks
    assert ids(tasks.list()) == [third.task_id, second.task_id, first.task_id]
    assert ids(tasks.list(limit=1)) == [third.task_id]
    assert ids(tasks.list(queue="mail")) == [third.task_id]
    assert ids(tasks.list(type="double")) == ids(tasks.list(type=setting.double)) == [second.task_id, first.task_id]
    assert ids(tasks.list(state="scheduled")) == ids(tasks.list(state=[State.SCHEDULED])) == [third.task_id]
    assert ids(tasks.list(state=("ready", "scheduled"))) == [third.task_id, second.task_id, first.task_id]
    assert ids(tasks.list(args={"number": 2})) == [second.task_id]
    assert tasks.list(since=datetime.now(UTC) + timedelta(hours=1)) == []
    assert len(tasks.list(since="1h")) == len(tasks.list(until=datetime.now(UTC) + timedelta(hours=1))) == 3
    assert tasks.list(until="1h") == []


def test_tasks_are_listed_with_their_errors(setting: Setting) -> None:
    setting.quiet.enqueue(1)
    setting.fail(Failure("builtins.ValueError", "no such picture"))
    (task,) = setting.app.tasks.list(error=ValueError)
    assert task.error is not None
    assert task.error.message == "no such picture"
    assert ids(setting.app.tasks.list(error="ValueError")) == [task.task_id]
    assert setting.app.tasks.list(error="KeyError") == []


def test_tasks_are_counted(setting: Setting) -> None:
    for number in range(3):
        setting.double.enqueue(number)
    setting.quiet.using(queue="mail", delay="1h").enqueue(3)
    tasks = setting.app.tasks
    assert (tasks.count(), tasks.count(queue="mail"), tasks.count(state="ready")) == (4, 1, 3)
    assert (tasks.count(queue="mail", state="ready"), tasks.count(type="double")) == (0, 3)
    assert (tasks.count(args={"number": 2}), tasks.count(since="1h", state="scheduled")) == (1, 1)


def test_one_task_is_got_by_its_id_its_handle_or_as_it_was_listed(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    listed = setting.app.tasks.get(handle)
    assert setting.app.tasks.get(handle.task_id) == setting.app.tasks.get(listed) == listed
    with pytest.raises(UnknownTask, match=rf"^task {NOWHERE} is not in this store: never enqueued, or pruned"):
        setting.app.tasks.get(NOWHERE)


@pytest.mark.parametrize(
    ("filters", "error", "text"),
    [
        ({"state": "done"}, BadOption, "state: 'done' is not one of blocked, scheduled, ready"),
        ({"status": "ready"}, BadOption, "there is no filter 'status'; there are args, error, queue, since, state"),
        ({"limit": 0}, BadOption, "limit: 0 is refused; a list has 1 to 1,000 tasks"),
        ({"since": datetime(2026, 1, 1)}, BadOption, "since: 2026-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ({"queue": "no queue"}, BadName, "queue"),
        ({"error": 3}, BadOption, "error: 3 is neither an exception class nor its name"),
    ],
)
def test_a_wrong_filter_says_what_is_right(setting: Setting, filters: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        setting.app.tasks.list(**filters)
    assert text in str(caught.value)


def test_a_search_that_ends_early_is_logged(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setting.double.enqueue(1)
    monkeypatch.setattr("holdfast.admin.search._PAGE_LIMIT", 0)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert setting.app.tasks.list(args={"number": 1}) == []
    assert "narrow it with state, queue, type, error or since" in caplog.text


def test_dead_letters_are_listed_replayed_and_discarded(setting: Setting) -> None:
    handles = [setting.quiet.enqueue(number) for number in range(3)]
    for _ in handles:
        setting.fail(Failure("builtins.ValueError", "no such picture"))
    dead = setting.app.dead
    assert ids(dead.list()) == [handle.task_id for handle in reversed(handles)]
    assert ids(dead.list(args={"number": 1}, error="ValueError", since="1h")) == [handles[1].task_id]
    assert dead.get(handles[0]).args == {"number": 0}
    dead.replay(*dead.list(args={"number": 0}), handles[1])
    assert [handle.status().state for handle in handles] == ["ready", "ready", "dead_lettered"]
    dead.discard(handles[2].task_id, reason="a test")
    assert dead.list() == []
    with pytest.raises(UnknownTask):
        handles[2].status()


def test_what_is_no_dead_letter_is_refused_and_the_others_are_done(setting: Setting) -> None:
    died, ready = setting.quiet.enqueue(1), setting.double.enqueue(1)
    setting.fail(Failure("builtins.ValueError", "no"))
    with pytest.raises(Refused, match=rf"^task {ready.task_id} is ready: it cannot be replayed$"):
        setting.app.dead.replay(ready, died)
    assert died.status().state is State.READY
    with pytest.raises(Refused, match=rf"^task {ready.task_id} is ready: it is not a dead letter$"):
        setting.app.dead.get(ready)
    with pytest.raises(UnknownTask):
        setting.app.dead.discard(NOWHERE, reason="a test")


WORKER = WorkerRecord(
    worker_id="w1",
    host="here",
    pid=1,
    version="0.1",
    queues=("default",),
    types=("double",),
    processes=2,
    concurrency=5,
    running=0,
)


def test_workers_are_listed_with_datetimes_and_as_json(setting: Setting) -> None:
    assert setting.app.workers.list() == []
    asyncio.run(setting.store.announce(WORKER, 60_000))
    (worker,) = setting.app.workers.list()
    assert worker.alive
    assert abs(worker.seen_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert worker.started_at <= worker.seen_at
    assert json.loads(json.dumps(worker.to_dict()))["worker_id"] == "w1"


def test_workers_are_drained_resumed_and_stopped_by_id_or_as_they_were_listed(setting: Setting) -> None:
    workers = setting.app.workers
    for name in ("w1", "w2"):
        asyncio.run(setting.store.announce(msgspec.structs.replace(WORKER, worker_id=name), 60_000))

    def mode(name: str) -> str:
        document = asyncio.run(documents.one(setting.store, documents.ORDERS, name))
        orders = documents.orders_of(document.value) if document else None
        return orders.mode if orders else "run"

    def modes() -> list[str]:
        return [mode(name) for name in ("w1", "w2")]

    first, _ = listed = workers.list()
    assert [(each.worker_id, each.status, each.slots) for each in listed] == [
        ("w1", "running", 10),
        ("w2", "running", 10),
    ]
    assert first == workers.list()[0]
    assert dict(first) == first.to_dict()
    assert workers.drain(first) == ["w1"]
    assert modes() == ["drain", "run"]
    assert workers.resume("w1") == ["w1"]
    assert workers.stop(all=True) == ["w1", "w2"]
    assert modes() == ["stop", "stop"]
    for names, everyone in ((), False), (("w1",), True):
        with pytest.raises(BadOption, match="name the workers, or give all=True"):
            workers.stop(*names, all=everyone)
    with pytest.raises(UnknownWorker):
        workers.drain("w3")


def test_tasks_are_run_now_rescheduled_cancelled_and_run_again(setting: Setting) -> None:
    tasks = setting.app.tasks
    waiting = [setting.double.using(delay="1h").enqueue(number) for number in range(3)]
    assert "for its time, in 1h" in tasks.why(waiting[0])
    tasks.run_now(*waiting[:2])

    def is_due(handle: TaskHandle[int]) -> bool:
        return handle.status().run_at <= datetime.now(UTC) + timedelta(seconds=30)

    assert [is_due(handle) for handle in waiting] == [True, True, False]
    at = datetime(2100, 1, 1, tzinfo=UTC)
    tasks.reschedule(waiting[0].task_id, run_at=at)
    assert abs(waiting[0].status().run_at - at) < timedelta(seconds=30)
    tasks.reschedule(waiting[1].status(), delay="2h")
    assert waiting[1].status().run_at > waiting[2].status().run_at
    with pytest.raises(BadOption, match="either run_at or delay"):
        tasks.reschedule(waiting[1])
    with pytest.raises(Refused, match="only a task that has ended can be run again"):
        tasks.rerun(waiting[2])
    tasks.cancel(*waiting[:2], reason="not needed")
    assert waiting[1].status().reason == "not needed"
    with pytest.raises(Refused, match="it cannot be run now"):
        tasks.run_now(waiting[0], waiting[2])
    assert is_due(waiting[2]), "the others are changed all the same"
    again = tasks.rerun(waiting[1])
    assert (again.status().args, again.status().state) == ({"number": 1}, "ready")
    with pytest.raises(UnknownTask):
        tasks.why(NOWHERE)


def test_many_tasks_are_asked_for_in_few_calls(setting: Setting) -> None:
    handles = setting.app.enqueue_many(setting.double.prepare(number) for number in range(MAX_BATCH + 1))
    before = setting.store.gets
    found = setting.app.status_many([*handles, NOWHERE, handles[0].task_id])
    assert setting.store.gets - before == 2
    assert [task and task.args["number"] for task in found] == [*range(MAX_BATCH + 1), None, 0]
    assert setting.app.status_many([]) == []
    with pytest.raises(UnknownTask, match="is not a task_id"):
        setting.app.status_many(["cat.jpg"])


def test_the_async_calls_do_the_same(setting: Setting) -> None:
    async def main() -> None:
        handle = await setting.double.aenqueue(1)
        app = setting.app
        assert ids(await app.tasks.alist()) == [handle.task_id]
        assert (await app.tasks.aget(handle)).task_id == handle.task_id
        assert await app.tasks.acount() == 1
        assert await app.dead.alist() == []
        assert await app.workers.alist() == []
        (found,) = await app.astatus_many([handle])
        assert found is not None
        with pytest.raises(Refused):
            await app.dead.aget(handle)
        with pytest.raises(Refused):
            await app.dead.areplay(handle)
        with pytest.raises(Refused):
            await app.dead.adiscard(handle, reason="a test")

    asyncio.run(main())


def test_cancelled_tasks_are_no_dead_letters(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    setting.settle(lifecycle.cancel(handle.task_id, "a test"))
    assert setting.app.dead.list() == []
    assert ids(setting.app.tasks.list(state="cancelled")) == [handle.task_id]
