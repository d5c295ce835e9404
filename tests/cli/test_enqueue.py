from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from holdfast.core import lifecycle
from holdfast.core.declared import DeclaredParameter, DeclaredType
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Failure
from tests.cli.conftest import CommandLine, failed, is_one_line
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


def test_the_app_is_also_read_from_the_environment(cli: CommandLine, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_APP", app)
    task_id = cli.ok("enqueue", "resize", "--args", '["cat.jpg"]').strip()
    assert cli.json("tasks", "show", task_id)["policy"]["max_attempts"] == 7


def test_every_command_with_an_app_reads_it_from_the_environment(
    cli: CommandLine, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dead,) = cli.dead_letters(type="resize", payload=b'{"url":"a"}')
    monkeypatch.setenv("HOLDFAST_APP", app)
    line = is_one_line(cli.run("dead", "replay", dead, "--set", "args.width=wide"), 1)
    assert "width: Expected `int`, got `str`" in line
    cli.ok("dead", "replay", dead)  # by itself, --app does not go without --set
    monkeypatch.setenv("HOLDFAST_APP", "not_there:app")
    assert "cannot import 'not_there:app'" in is_one_line(cli.run("tasks", "rerun", dead), 2)


RESIZE = DeclaredType(
    name="resize",
    queue="images",
    priority=7,
    policy=RunPolicy(max_attempts=2, base_ms=1_000, timeout_ms=5_000),
    parameters=(
        DeclaredParameter("url", required=True, kinds=("string",)),
        DeclaredParameter("width", kinds=("integer", "null")),
    ),
)


@pytest.fixture
def published(cli: CommandLine) -> CommandLine:
    cli.announce(queues=("images", "rush"), types=("resize",))
    cli.publish(RESIZE)
    return cli


@pytest.mark.parametrize("arguments", ['{"url": "a", "width": 4}', '["a", 4]'])
def test_a_published_type_is_enqueued_with_its_policy(published: CommandLine, arguments: str) -> None:
    task_id = published.json("enqueue", "resize", "--args", arguments)["task_id"]
    task = published.json("tasks", "show", task_id)
    assert (task["queue"], task["priority"], task["arguments"]) == ("images", 7, {"url": "a", "width": 4})
    policy = task["policy"]
    assert (policy["max_attempts"], policy["base_ms"], policy["timeout_ms"]) == (2, 1_000, 5_000)


def test_options_override_the_published_ones(published: CommandLine) -> None:
    options = ("--queue", "rush", "--priority", "1", "--args", '{"url": "a"}')
    task = published.json("tasks", "show", published.json("enqueue", "resize", *options)["task_id"])
    assert (task["queue"], task["priority"], task["policy"]["max_attempts"]) == ("rush", 1, 2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{}", "resize(): missing argument 'url'; it takes url, [width]"),
        ('{"url": "a", "widht": 4}', "resize(): unknown argument 'widht'; it takes url, [width]"),
        ('{"url": 3}', "resize(): url: expected string, got integer; it takes url, [width]"),
        ('{"url": "a", "width": "4"}', "resize(): width: expected integer or null, got string; it takes url, [width]"),
        ('["a", 4, 5]', "resize(): too many arguments by position (3); it takes url, [width]"),
    ],
)
def test_arguments_are_checked_against_the_published_signature(
    published: CommandLine, arguments: str, problem: str
) -> None:
    assert is_one_line(published.run("enqueue", "resize", "--args", arguments), 2) == f"holdfast: {problem}\n"
    put = ("schedules", "put", "s", "--type", "resize", "--every", "1h")
    assert is_one_line(published.run(*put, "--args", arguments), 2) == f"holdfast: {problem}\n"


def test_force_enqueues_what_does_not_fit_with_the_published_policy(published: CommandLine) -> None:
    task_id = published.json("enqueue", "resize", "--force", "--args", '{"x": 1}')["task_id"]
    assert published.json("tasks", "show", task_id)["policy"]["max_attempts"] == 2


def test_a_schedule_has_the_published_policy(published: CommandLine) -> None:
    put = ("schedules", "put", "s", "--type", "resize", "--every", "1h", "--args", '{"url": "a"}')
    call = published.json(*put)["call"]
    assert (call["queue"], call["priority"], call["policy"]["max_attempts"]) == ("images", 7, 2)
    line = is_one_line(published.run("schedules", "edit", "s", "--args", '{"url": 1}'), 2)
    assert "url: expected string, got integer" in line


def test_a_type_of_an_app_that_signs_needs_its_keys(cli: CommandLine) -> None:
    cli.announce(queues=("images",), types=("resize",))
    cli.publish(msgspec.structs.replace(RESIZE, protected=True))
    line = is_one_line(cli.run("enqueue", "resize", "--args", '{"url": "a"}'), 2)
    assert "the app of resize signs or encrypts its arguments: use --app module:app, or set HOLDFAST_KEYS" in line


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        ((), "no worker is running, so the policy and the arguments of resize are unknown: "),
        (("add",), "no running worker knows the type resize (they know add): "),
        (("resise",), "no running worker knows the type resize (did you mean resise?): "),
        (("resize",), "the workers that know the type resize have not published its policy: "),
    ],
)
def test_what_no_worker_has_published_asks_for_the_app(cli: CommandLine, types: tuple[str, ...], problem: str) -> None:
    cli.enqueue()
    if types:
        cli.announce(types=types)
    line = is_one_line(cli.run("enqueue", "resize"), 2)
    assert problem + "use --app module:app (or HOLDFAST_APP), or --force to enqueue it unchecked" in line


def test_a_worker_that_is_gone_knows_nothing(cli: CommandLine) -> None:
    cli.announce(worker_id="w", ttl_ms=1)

    def is_gone() -> bool:
        return not cli.json("workers", "ls")[0]["alive"]

    eventually(is_gone)
    is_one_line(cli.run("enqueue", "add"), 2)


def test_a_queue_that_nobody_serves_for_this_type_is_refused(published: CommandLine) -> None:
    line = is_one_line(published.run("enqueue", "resize", "--queue", "videos", "--args", '["a"]'), 2)
    assert "they serve images, rush: use --queue, or --force" in line


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


def test_wait_for_a_task_that_fails_shows_its_error(cli: CommandLine) -> None:
    cli.ok("migrate")
    for options in ([], ["--json"]):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(cli.run, "enqueue", "add", "--force", "--wait", "--timeout", "30s", *options)
            (task,) = eventually(cli.claim)
            cli.settle(failed(task, Failure("builtins.ValueError", "no route to host"), retryable=False))
            result = waiting.result(30)
        assert result.exit_code == 1
        if options:
            assert json.loads(result.stdout)["error"] == {"type": "builtins.ValueError", "message": "no route to host"}
        else:
            said = f"task {task.task_id} is dead_lettered: not_retryable, after ValueError: no route to host"
            assert f"{said}; see holdfast dead show {task.task_id}\n" in result.stderr


def test_wait_that_takes_too_long_is_a_no(cli: CommandLine) -> None:
    result = cli.run("enqueue", "add", "--force", "--wait", "--timeout", "50ms", "--json")
    assert "no worker is running for queue default). It is still queued in sqlite:" in is_one_line(result, 1)
