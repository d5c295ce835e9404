"""One JSON form of a task, and of a schedule: over HTTP, on the command line and in Python."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.admin.views import schedule_view, task_view
from holdfast.cli.main import main
from holdfast.core.task import NewTask
from holdfast.stores import documents
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from tests.server.setting import Client, sqlite_server

NO_JSON = b"\xff\x00 no JSON"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with sqlite_server(tmp_path) as server:
        client = Client(server.port)
        yield client
        client.close()


def _on_command_line(directory: Path, *arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--json", "--url", f"sqlite:///{directory}/tasks.db"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def _in_python(directory: Path, task_ids: list[str]) -> list[Any]:
    store = open_store(f"sqlite:///{directory}/tasks.db")
    try:
        found = await store.get(task_ids)
        return [json.loads(msgspec.json.encode(task_view(task, history=True))) for task in found if task is not None]
    finally:
        await store.close()


async def _enqueue_bytes(directory: Path, task_id: str) -> None:
    store = open_store(f"sqlite:///{directory}/tasks.db")
    try:
        await store.enqueue([NewTask(task_id=task_id, type="t", queue="raw", payload=NO_JSON)])
    finally:
        await store.close()


def test_a_task_has_one_json_form(tmp_path: Path, client: Client) -> None:
    ready = client.enqueue("first", arguments={"ä": [1, 2.5, None]}, priority=3, headers={"a": "b"}, delay="1h")
    done = client.claim(retry={"max_attempts": 7}, timeout="5m")
    client.post(f"/v1/tasks/{done['task_id']}/extend", {"token": done["token"], "progress": {"done": 1}})
    client.post(f"/v1/tasks/{done['task_id']}/ack", {"token": done["token"], "result": {"sum": 3}})
    dead = client.dead_letter()
    raw = f"{ready[:-1]}{'0' if ready[-1] != '0' else '1'}"
    asyncio.run(_enqueue_bytes(tmp_path, raw))

    task_ids = [ready, done["task_id"], dead, raw]
    in_python = asyncio.run(_in_python(tmp_path, task_ids))
    for task_id, form in zip(task_ids, in_python, strict=True):
        assert client.get(f"/v1/tasks/{task_id}") == form
        assert _on_command_line(tmp_path, "tasks", "show", task_id) == form
    assert (in_python[3]["arguments"], in_python[3]["arguments_base64"]) == (None, "/wAgbm8gSlNPTg==")


def test_lists_of_tasks_have_the_same_form(tmp_path: Path, client: Client) -> None:
    client.enqueue("first")
    client.dead_letter()
    for path, command in (("/v1/tasks", "tasks"), ("/v1/dead-letters", "dead")):
        listed = _on_command_line(tmp_path, command, "ls")
        assert client.get(path) == {name: listed[name] for name in ("tasks", "cursor")}


def test_a_schedule_has_one_json_form(tmp_path: Path, client: Client) -> None:
    client.put("/v1/schedules/nightly", {"type": "report", "cron": "0 3 * * *", "arguments": {"full": True}})

    async def in_python() -> Any:
        store: Store = open_store(f"sqlite:///{tmp_path}/tasks.db")
        try:
            schedule = await documents.schedule(store, "nightly")
            assert schedule is not None
            return json.loads(msgspec.json.encode(schedule_view(schedule)))
        finally:
            await store.close()

    form = asyncio.run(in_python())
    shown = _on_command_line(tmp_path, "schedules", "show", "nightly")
    shown.pop("next")
    assert client.get("/v1/schedules/nightly") == form == shown
