"""Clients follow and cancel tasks through the routes of a service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header, HTTPException

from holdfast.contrib import task_router
from holdfast.contrib.fastapi import TaskRouter
from holdfast.core import lifecycle
from holdfast.core.task import Failure, Progress
from holdfast.errors import BadOption
from tests.contrib.services import asked
from tests.producer.conftest import setting
from tests.producer.setting import Setting

__all__ = ["setting"]


def service_of(setting: Setting, *dependencies: Any) -> FastAPI:
    service = FastAPI()
    service.include_router(TaskRouter(setting.app, dependencies=dependencies))
    return service


def events(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.decode().splitlines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_a_task_is_shown_with_progress_result_and_error(setting: Setting) -> None:
    service = service_of(setting)
    handle = setting.double.enqueue(21)
    path = f"/tasks/{handle.task_id}"
    status, shown = asked(service, "GET", path)
    assert (status, shown["state"], shown["finished"], shown["progress"]) == (200, "ready", False, None)
    assert not {"arguments", "headers", "history"} & shown.keys()
    claimed = setting.claim()
    setting.tell(claimed, Progress(done=3, total=4, note="nearly"))
    assert asked(service, "GET", path)[1]["progress"] == {"done": 3, "total": 4, "note": "nearly"}
    setting.settle(lifecycle.ack(claimed.task_id, claimed.token, b"42"))
    shown = asked(service, "GET", path)[1]
    assert (shown["state"], shown["finished"], shown["result"], shown["progress"]) == ("succeeded", True, 42, None)
    failed = setting.quiet.enqueue(1)
    setting.fail(Failure("builtins.ValueError", "no such picture", "a traceback"))
    shown = asked(service, "GET", f"/tasks/{failed.task_id}")[1]
    assert shown["error"] == {"type": "builtins.ValueError", "message": "no such picture"}


def test_unknown_tasks_and_those_of_other_apps_are_not_found(setting: Setting) -> None:
    service = service_of(setting)
    other = setting.double.enqueue(1)
    del setting.app._task_types["double"]
    for task_id in ("0" * 32, "cat.jpg", other.task_id):
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
            assert asked(service, method, f"/tasks/{task_id}{path}")[0] == 404


def test_a_task_is_cancelled_once(setting: Setting) -> None:
    service = service_of(setting)
    waiting, running = setting.double.using(delay="1h").enqueue(1), setting.double.enqueue(2)
    setting.claim()
    assert asked(service, "POST", f"/tasks/{waiting.task_id}/cancel")[1]["cancelled"] is True
    assert asked(service, "POST", f"/tasks/{running.task_id}/cancel")[1]["cancelled"] is False
    ended = setting.quiet.enqueue(3)
    setting.fail(Failure("builtins.ValueError", "no"))
    status, answer = asked(service, "POST", f"/tasks/{ended.task_id}/cancel")
    assert (status, "has ended and cannot be cancelled" in answer["detail"]) == (409, True)


def test_events_tell_of_each_change_until_the_end(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    service = service_of(setting)
    handle = setting.double.enqueue(21)
    task = setting.claim()
    looks = 0

    async def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            await setting.store.apply([lifecycle.ack(task.task_id, task.token, b"42")])

    monkeypatch.setattr("asyncio.sleep", sleep)
    status, text = asked(service, "GET", f"/tasks/{handle.task_id}/events")
    assert status == 200
    assert [(each["state"], each["result"]) for each in events(text)] == [("claimed", None), ("succeeded", 42)]
    assert text.startswith(b"retry: 1000\n\nevent: task\n")
    assert looks == 3


def test_a_stream_ends_after_its_time_and_there_are_not_too_many(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(setting)
    path = f"/tasks/{setting.double.enqueue(21).task_id}/events"
    monkeypatch.setattr(task_router, "STREAM_SECONDS", 0)
    assert len(list(events(asked(service, "GET", path)[1]))) == 1
    monkeypatch.setattr(task_router, "MAX_STREAMS", 0)
    assert asked(service, "GET", path)[0] == 503


def test_who_may_call_is_for_the_dependencies_to_decide(setting: Setting) -> None:
    seen: list[str] = []

    def signed_in(task_id: str, authorization: Annotated[str, Header()] = "") -> None:
        seen.append(task_id)
        if authorization != "Bearer secret":
            raise HTTPException(401)

    service = service_of(setting, Depends(signed_in))
    handle = setting.double.enqueue(1)
    path = f"/tasks/{handle.task_id}"
    assert [asked(service, "GET", each)[0] for each in (path, f"{path}/events")] == [401, 401]
    assert asked(service, "POST", f"{path}/cancel")[0] == 401
    assert asked(service, "GET", path, {"Authorization": "Bearer secret"})[0] == 200
    assert set(seen) == {handle.task_id}
    assert handle.status().state == "ready"


def test_dependencies_must_be_named_and_the_app_be_one(setting: Setting) -> None:
    with pytest.raises(TypeError, match="dependencies"):
        TaskRouter(setting.app)  # type: ignore[call-arg]
    with pytest.raises(BadOption, match=r"^TaskRouter takes an app"):
        TaskRouter(FastAPI(), dependencies=[])  # type: ignore[arg-type]


def test_the_routes_are_in_the_openapi_document(setting: Setting) -> None:
    status, document = asked(service_of(setting), "GET", "/openapi.json")
    assert status == 200
    assert {"/tasks/{task_id}", "/tasks/{task_id}/events", "/tasks/{task_id}/cancel"} <= document["paths"].keys()
