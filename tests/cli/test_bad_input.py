"""Bad input: one clear line, the right exit code, no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from holdfast.cli.main import main
from tests.cli.conftest import CommandLine, is_one_line
from tests.support import run_holdfast

APP = """
from holdfast import Holdfast
app = Holdfast()

@app.task(name="resize", queue="images")
def resize(url: str, width: int = 800) -> str:
    return url
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of its own a test: modules are imported once a process."""
    name = f"pictures_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:app"


def test_unknown_type_without_an_app(cli: CommandLine) -> None:
    cli.announce(types=("add", "subtract"))
    line = is_one_line(cli.run("enqueue", "divide"), 2)
    assert "no running worker knows the type divide (they know add, subtract): use --app module:app" in line
    assert cli.json("tasks", "ls")["tasks"] == []


def test_unknown_type_without_a_worker(cli: CommandLine) -> None:
    cli.ok("migrate")
    assert "no worker is running" in is_one_line(cli.run("enqueue", "divide"), 2)


def test_unknown_type_of_an_app(cli: CommandLine, app: str) -> None:
    line = is_one_line(cli.run("enqueue", "rotate", "--app", app), 2)
    assert "has no task type rotate; it has resize" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"url": "a", "wdith": 1}', "unknown argument 'wdith'"),
        ('{"width": 1}', "url"),
        ('{"url": "a", "width": "wide"}', "width"),
        ('["a", 1, 2]', "resize()"),
    ],
)
def test_arguments_that_do_not_fit(cli: CommandLine, app: str, arguments: str, words: str) -> None:
    assert words in is_one_line(cli.run("enqueue", "resize", "--app", app, "--args", arguments), 2)


@pytest.mark.parametrize("text", ["{", "", "nope", '{"a": NaN}', "{'a': 1}", '{"a": 1} x', '"\udcff"'])
def test_bad_json(cli: CommandLine, text: str) -> None:
    assert "--args is not JSON" in is_one_line(cli.run("enqueue", "add", "--force", "--args", text), 2)


@pytest.mark.parametrize("text", ["1", '"a"', "null", "true"])
def test_json_that_is_no_object(cli: CommandLine, text: str) -> None:
    assert "not a JSON object" in is_one_line(cli.run("enqueue", "add", "--force", "--args", text), 2)


def test_a_list_needs_the_names_of_the_parameters(cli: CommandLine) -> None:
    line = is_one_line(cli.run("enqueue", "add", "--force", "--args", "[1]"), 2)
    assert "a list needs the names of the parameters; write an object" in line


def test_payload_over_the_limit(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(json.dumps({"text": "x" * 300_000}))
    line = is_one_line(cli.run("enqueue", "add", "--force", "--args", f"@{tmp_path / 'large.json'}"), 2)
    assert "the limit is 262,144" in line


def test_payload_too_deep(cli: CommandLine) -> None:
    nested = '{"a":' + "[" * 100 + "]" * 100 + "}"
    assert "levels deep" in is_one_line(cli.run("enqueue", "add", "--force", "--args", "-", stdin=nested), 2)


def test_arguments_nested_beyond_reason(cli: CommandLine) -> None:
    nested = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    is_one_line(cli.run("enqueue", "add", "--force", "--args", "-", stdin=nested), 2)


def test_a_file_of_arguments_that_is_not_there(cli: CommandLine, tmp_path: Path) -> None:
    line = is_one_line(cli.run("enqueue", "add", "--force", "--args", f"@{tmp_path / 'none.json'}"), 2)
    assert "No such file" in line


@pytest.mark.parametrize("text", ["soon", "-5s", "5 parsecs", "200y", "nan", ""])
def test_bad_duration(cli: CommandLine, text: str) -> None:
    assert "--delay" in is_one_line(cli.run("enqueue", "add", "--force", f"--delay={text}"), 2)


@pytest.mark.parametrize("text", ["tomorrow", "2030-01-01T00:00:00", "1900-01-01T00:00:00Z", "99999-01-01"])
def test_bad_time(cli: CommandLine, text: str) -> None:
    assert "--at" in is_one_line(cli.run("enqueue", "add", "--force", "--at", text), 2)


@pytest.mark.parametrize(
    "options",
    [
        ["--delay", "1s", "--at", "2030-01-01T00:00:00Z"],
        ["--priority", "1000"],
        ["--priority", "high"],
        ["--queue", "no spaces"],
        ["--request-id", "no spaces"],
        ["--timeout", "5s"],
    ],
)
def test_bad_options(cli: CommandLine, options: list[str]) -> None:
    is_one_line(cli.run("enqueue", "add", "--force", *options), 2)


@pytest.mark.parametrize("name", ["-", "a b", "x" * 200, "\x1b[31mred"])
def test_bad_type_name(cli: CommandLine, name: str) -> None:
    assert "\x1b" not in is_one_line(cli.run("enqueue", "--force", "--", name), 2)


@pytest.mark.parametrize("url", ["nonsense", "", "sqlite:/x.db", "mysql://host/db", "sqlite:///", "sqlite://host/x.db"])
def test_bad_url(url: str) -> None:
    is_one_line(CliRunner().invoke(main, ["queues", "ls", f"--url={url}"]), 2)


def test_a_password_in_a_bad_url_is_not_repeated() -> None:
    result = CliRunner().invoke(main, ["queues", "ls", "--url", "mysql://user:secret@host/db"])
    assert "secret" not in is_one_line(result, 2)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["migrate", "--url", f"sqlite:///{tmp_path}/no/such/x.db"])
    assert "does not exist" in is_one_line(result, 2)


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = CliRunner().invoke(main, ["migrate", "--url", f"sqlite:///{tmp_path}/file/x.db"])
    assert "cannot open" in is_one_line(result, 2)


def test_a_path_that_is_a_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["queues", "ls", "--url", f"sqlite:///{tmp_path}"])
    assert "is a folder" in is_one_line(result, 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = CliRunner().invoke(main, ["migrate", "--url", f"sqlite:///{tmp_path}/x.db"])
    assert "no permission" in is_one_line(result, 2)


@pytest.mark.parametrize("command", ["show", "why"])
def test_unknown_task_id(cli: CommandLine, command: str) -> None:
    cli.enqueue()
    line = is_one_line(cli.run("tasks", command, "0" * 32), 1)
    assert "no task 0000" in line


@pytest.mark.parametrize("command", [["tasks", "show"], ["tasks", "why"], ["tasks", "cancel"], ["dead", "replay"]])
def test_what_cannot_be_a_task_id_is_a_wrong_call(cli: CommandLine, command: list[str]) -> None:
    assert "32 hex digits" in is_one_line(cli.run(*command, "latest"), 2)


def test_looking_does_not_make_a_database(cli: CommandLine) -> None:
    for command in (["tasks", "ls"], ["dead", "ls"], ["queues", "ls"], ["workers", "ls"], ["doctor"]):
        assert "there is no database" in is_one_line(cli.run(*command), 1)
    assert not cli.path.exists()


def test_a_database_of_a_newer_version(cli: CommandLine) -> None:
    cli.enqueue()
    connection = apsw.Connection(str(cli.path))
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    for command in (["tasks", "ls"], ["enqueue", "add", "--force"], ["doctor"], ["migrate"]):
        assert "newer version of Holdfast" in is_one_line(cli.run(*command), 1)


def test_a_file_that_is_no_database(cli: CommandLine) -> None:
    cli.path.write_text("this is a text, and long enough to be looked at as a header of a database file" * 20)
    for command in (["tasks", "ls"], ["enqueue", "add", "--force"], ["doctor"]):
        assert "not a SQLite database" in is_one_line(cli.run(*command), 2)


def test_a_database_of_another_program(cli: CommandLine) -> None:
    connection = apsw.Connection(str(cli.path))
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    assert "another program" in is_one_line(cli.run("tasks", "ls"), 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("app = 5", "not a Holdfast app"),
        ("1/0", "ZeroDivisionError"),
        ("def (", "SyntaxError"),
    ],
)
def test_an_app_that_cannot_be_loaded(cli: CommandLine, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    command = ["enqueue", "add", "--app", "broken:app", "--url", cli.url]
    shown = run_holdfast(*command, cwd=tmp_path)
    assert shown.returncode == 2
    assert shown.stderr.startswith("holdfast: cannot import 'broken:app'")
    assert words in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_module_that_is_not_there(cli: CommandLine) -> None:
    assert "there is no module" in is_one_line(cli.run("enqueue", "add", "--app", "no_such_module:app"), 2)


@pytest.mark.parametrize(
    "arguments",
    [
        "enqueue nothing",
        "enqueue nothing --force --args [1]",
        "queues pause mail",
        "queues resume mail",
        "queues order mail strict",
        "queues spread mail 2",
        "queues purge mail --yes",
        "schedules put nightly --type report --every 1h",
        "schedules put nightly --type report --every 1h --force --args [1]",
        "schedules put bad/name --type report --every 1h --force",
        "schedules put nightly --type report --force",
        "schedules edit nightly --every 1h",
        "schedules run nightly",
        "tasks cancel --all --yes",
        "dead replay --all --yes",
        "workers drain --all",
        "token create --scope nonsense",
        "token create --scope admin --expires 0",
        "token revoke abcdef",
        "server --host 0.0.0.0 --port 0",
        "doctor",
    ],
)
def test_a_refused_command_creates_no_database(cli: CommandLine, arguments: str) -> None:
    assert cli.run(*arguments.split()).exit_code in {1, 2}
    assert not cli.path.exists()


def test_a_command_that_needs_a_worker_says_so_where_there_is_no_database(cli: CommandLine) -> None:
    line = is_one_line(cli.run("enqueue", "resize"), 1)
    assert f"there is no database at {cli.path} yet; start a worker, fix --url, use --app module:app" in line
    assert "run `holdfast migrate`" in is_one_line(cli.run("queues", "pause", "mail"), 1)


@pytest.mark.parametrize("arguments", [("enqueue", "add", "--force"), ("queues", "pause", "mail", "--create")])
def test_what_is_created_on_purpose_creates_the_database(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    cli.ok(*arguments)
    assert cli.path.exists()
