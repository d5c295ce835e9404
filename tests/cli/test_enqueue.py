from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.core import lifecycle
from tests.cli.conftest import CommandLine, is_one_line
from tests.support import eventually

APP = """
from holdfast import Holdfast, Retry
app = Holdfast({url!r})

@app.task(name="resize", queue="images", priority=3, retry=Retry(max_attempts=7))
def resize(url: str, width: int = 800) -> str:
    return url
"""


@pytest.fixture
def app(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"gallery_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(APP.format(url=cli.url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:app"


def test_with_an_app_the_queue_and_policy_are_the_functions(cli: CommandLine, app: str) -> None:
    task_id = cli.ok("enqueue", "resize", "--app", app, "--args", '["cat.jpg"]').strip()
    task = cli.json("tasks", "show", task_id)
    assert task["arguments"] == {"url": "cat.jpg"}
    assert (task["queue"], task["priority"], task["policy"]["max_attempts"]) == ("images", 3, 7)


def test_options_override_those_of_the_app(cli: CommandLine, app: str) -> None:
    options = ["--queue", "rush", "--priority", "9", "--delay", "1h", "--request-id", "order-42"]
    task_id = cli.ok("enqueue", "resize", "--app", app, "--args", '{"url": "a", "width": 1}', *options).strip()
    task = cli.json("tasks", "show", task_id)
    assert (task["queue"], task["priority"], task["state"]) == ("rush", 9, "scheduled")
    assert task["request_id"] == "order-42"


def test_a_deadline_to_start_is_recorded_with_the_task(cli: CommandLine, app: str) -> None:
    for options in (["--app", app, "--args", '["a"]'], ["--force"]):
        task_id = cli.ok("enqueue", "resize", "--expires", "10m", *options).strip()
        assert cli.json("tasks", "show", task_id)["policy"]["expires_ms"] == 600_000
        for wrong in (["--expires", "0"], ["--expires", "soon"], ["--expires", "1m", "--delay", "1m"]):
            is_one_line(cli.run("enqueue", "resize", *options, *wrong), 2)


def test_a_type_that_a_worker_knows_goes_to_the_queue_that_the_worker_serves(cli: CommandLine) -> None:
    cli.announce(queues=("images",), types=("resize",))
    task_id = cli.json("enqueue", "resize", "--args", '{"url": "a"}')["task_id"]
    assert cli.json("tasks", "show", task_id)["queue"] == "images"


def test_a_worker_that_is_gone_knows_nothing(cli: CommandLine) -> None:
    cli.announce(worker_id="w", ttl_ms=1)

    def is_gone() -> bool:
        return not cli.json("workers", "ls")[0]["alive"]

    eventually(is_gone)
    is_one_line(cli.run("enqueue", "add"), 2)


def test_a_queue_that_nobody_serves_for_this_type_is_refused(cli: CommandLine) -> None:
    cli.announce(queues=("images",), types=("resize",))
    assert "they serve images" in is_one_line(cli.run("enqueue", "resize", "--queue", "videos"), 2)


def test_force_records_what_nobody_knows(cli: CommandLine) -> None:
    task_id = cli.ok("enqueue", "later", "--force").strip()
    assert cli.json("tasks", "show", task_id)["state"] == "ready"


def test_at_takes_a_time_with_an_offset(cli: CommandLine) -> None:
    task_id = cli.ok("enqueue", "add", "--force", "--at", "2040-01-01T01:00:00+01:00").strip()
    assert cli.json("tasks", "show", task_id)["run_at_ms"] == 2_208_988_800_000


def test_the_same_request_id_gives_the_same_task(cli: CommandLine) -> None:
    first = cli.json("enqueue", "add", "--force", "--request-id", "r-1")
    second = cli.json("enqueue", "add", "--force", "--request-id", "r-1")
    assert first == {"task_id": first["task_id"], "created": True}
    assert second == {"task_id": first["task_id"], "created": False}


def test_a_request_id_that_stands_for_something_else_is_a_no(cli: CommandLine) -> None:
    cli.ok("enqueue", "add", "--force", "--request-id", "r-1")
    line = is_one_line(cli.run("enqueue", "add", "--force", "--request-id", "r-1", "--args", '{"a": 2}'), 1)
    assert "r-1" in line


def test_arguments_from_stdin(cli: CommandLine) -> None:
    task_id = cli.ok("enqueue", "add", "--force", "--args", "-", stdin='{"text": "größer"}').strip()
    assert cli.json("tasks", "show", task_id)["arguments"] == {"text": "größer"}


def test_wait_prints_the_result(cli: CommandLine) -> None:
    cli.ok("migrate")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cli.run, "enqueue", "add", "--force", "--wait", "--timeout", "30s", "--json")
        (task,) = eventually(cli.claim)
        cli.settle(lifecycle.ack(task.task_id, task.token, b"[1,2]"))
        result = waiting.result(30)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["result"] == [1, 2]


def test_wait_for_a_task_that_ends_otherwise_is_a_no(cli: CommandLine) -> None:
    cli.ok("migrate")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cli.run, "enqueue", "add", "--force", "--wait", "--timeout", "30s")
        (task,) = eventually(cli.claim)
        cli.settle(lifecycle.stop(task.task_id, task.token, "not needed"))
        result = waiting.result(30)
    assert result.exit_code == 1
    assert "cancelled: not needed" in result.stderr


def test_wait_that_takes_too_long_is_a_no(cli: CommandLine) -> None:
    result = cli.run("enqueue", "add", "--force", "--wait", "--timeout", "50ms", "--json")
    assert "it goes on" in is_one_line(result, 1)
