"""A task as an app sees it: datetimes, decoded values, one JSON form, and the error of a failed one."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta

import msgspec
import pydantic
import pytest
from fastapi import FastAPI

from holdfast import TaskCancelled, TaskFailed, TaskHandle, TaskInfo
from holdfast.admin.views import task_view
from holdfast.core import lifecycle
from holdfast.core.task import Failure, LogLine, Progress, State, moment
from tests.contrib.services import asked
from tests.producer.setting import Setting


def test_times_are_aware_datetimes_in_utc(setting: Setting) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    task = setting.double.enqueue(21).status()
    assert before <= task.created_at <= datetime.now(UTC)
    assert task.created_at.utcoffset() == timedelta(0)
    assert (task.claimed_at, task.lease_expires_at, task.finished_at) == (None, None, None)
    claimed = setting.claim()
    running = setting.app.handle(task.task_id).status()
    assert running.claimed_at is not None
    assert running.lease_expires_at == running.claimed_at + timedelta(seconds=30)
    setting.settle(lifecycle.ack(claimed.task_id, claimed.token, b"42"))
    ended = setting.app.handle(task.task_id).status()
    assert ended.is_finished
    assert ended.finished_at is not None
    assert ended.history[0].started_at <= ended.history[0].ended_at <= datetime.now(UTC)


def test_a_time_beyond_the_calendar_is_the_last_one() -> None:
    assert moment(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert moment(10**15).year == 9999


def test_arguments_result_and_progress_are_decoded(setting: Setting) -> None:
    handle = setting.double.enqueue(21)
    claimed = setting.claim()
    line = LogLine(1_000, "info", "begun")
    setting.tell(claimed, Progress(done=3, total=4, note="nearly", log=(line,)))
    running = handle.status()
    assert (running.args, running.result, running.progress.fraction) == ({"number": 21}, None, 0.75)
    assert running.log[0].at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    setting.settle(lifecycle.ack(claimed.task_id, claimed.token, b"42"))
    assert handle.status().result == 42


def test_a_succeeded_task_has_no_unfinished_progress_but_its_log(setting: Setting) -> None:
    handle = setting.double.enqueue(21)
    claimed = setting.claim()
    line = LogLine(1, "info", "begun")
    setting.tell(claimed, Progress(done=3, total=4, note="nearly", log=(line,)))
    setting.settle(lifecycle.ack(claimed.task_id, claimed.token, b"42"))
    ended = handle.status()
    assert ended.progress == handle.progress() == Progress(log=(line,))
    assert ended.to_dict()["progress"] == {"log": [[1, "info", "begun"]]}


def test_a_failed_task_shows_how_far_it_came(setting: Setting) -> None:
    handle = setting.quiet.enqueue(21)
    claimed = setting.claim()
    setting.tell(claimed, Progress(done=3, total=4))
    setting.fail(Failure("builtins.ValueError", "no"), claimed)
    assert handle.progress().fraction == 0.75


def test_the_json_form_is_that_of_http_and_the_command_line(setting: Setting) -> None:
    task = setting.double.enqueue(21).status()
    form = task.to_dict()
    assert form["arguments"] == {"number": 21}
    assert form["state"] == "ready"
    assert task.to_json() == msgspec.json.encode(task_view(task.record, history=True))
    assert json.loads(json.dumps(form)) == json.loads(task.to_json()) == dict(task) == form


def test_a_route_of_fastapi_returns_it_with_and_without_an_annotation(setting: Setting) -> None:
    handle = setting.double.enqueue(21)
    service = FastAPI()

    @service.get("/typed")
    async def typed() -> TaskInfo:
        return await handle.astatus()

    @service.get("/untyped")
    def untyped():  # type: ignore[no-untyped-def]
        return handle.status()

    expected = handle.status().to_dict()
    assert asked(service, "GET", "/typed") == (200, expected)
    assert asked(service, "GET", "/untyped") == (200, expected)
    assert asked(service, "GET", "/openapi.json")[0] == 200


def test_a_route_of_fastapi_returns_a_handle_as_its_id(setting: Setting) -> None:
    """`return await send.aenqueue(...)` is what comes to mind first."""
    service = FastAPI()

    @service.post("/plain")
    async def plain():  # type: ignore[no-untyped-def]
        return await setting.double.aenqueue(1)

    @service.post("/annotated")
    async def annotated() -> TaskHandle[int]:
        return await setting.double.aenqueue(2)

    ids = [asked(service, "POST", path)[1] for path in ("/plain", "/annotated")]
    described = asked(service, "GET", "/openapi.json")[1]["paths"]["/annotated"]["post"]["responses"]["200"]
    assert [list(each) for each in ids] == [["task_id"], ["task_id"]]
    assert [setting.app.handle(each["task_id"]).status().args for each in ids] == [{"number": 1}, {"number": 2}]
    assert described["content"]["application/json"]["schema"]["required"] == ["task_id"]


def test_a_pydantic_model_may_have_one(setting: Setting) -> None:
    class Report(pydantic.BaseModel):
        task: TaskInfo

    task = setting.double.enqueue(21).status()
    assert json.loads(Report(task=task).model_dump_json())["task"] == task.to_dict()


def test_it_is_a_value(setting: Setting) -> None:
    handle = setting.double.enqueue(21)
    task = handle.status()
    assert task == handle.status() == pickle.loads(pickle.dumps(task))
    assert {task: 1}[handle.status()] == 1
    assert task != setting.double.enqueue(21).status()
    assert repr(task) == f"<TaskInfo {task.task_id} double ready>"


def test_a_failure_has_class_message_traceback_and_task(setting: Setting) -> None:
    handle = setting.quiet.enqueue(1)
    setting.fail(Failure("builtins.ValueError", "no such picture", 'File "a.py", line 3'))
    with pytest.raises(TaskFailed) as caught:
        handle.result()
    failed = pickle.loads(pickle.dumps(caught.value))
    assert str(failed) == str(caught.value)
    assert (failed.error, failed.message) == ("builtins.ValueError", "no such picture")
    assert failed.traceback == 'File "a.py", line 3'
    assert failed.task.state is State.DEAD_LETTERED
    assert failed.task.args == {"number": 1}
    assert failed.task.error.message == "no such picture"


def test_a_cancelled_task_has_no_error_but_the_task(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    handle.cancel("changed my mind")
    with pytest.raises(TaskCancelled) as caught:
        handle.result()
    assert (caught.value.error, caught.value.message, caught.value.traceback) == ("", "", "")
    assert caught.value.task.reason == "changed my mind"


def test_arguments_that_are_no_object_are_none(setting: Setting) -> None:
    record = setting.double.enqueue(1).status().record
    for payload in (b"[1]", b"\xff"):
        assert TaskInfo(msgspec.structs.replace(record, payload=payload)).args == {}
