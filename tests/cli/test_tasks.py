from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.task import Failure
from tests.cli.conftest import CommandLine, is_one_line


def test_ls_shows_the_newest_first_as_tab_separated_text(cli: CommandLine) -> None:
    first, second = cli.enqueue(2)
    rows = cli.rows("tasks", "ls")
    assert [row["task_id"] for row in rows] == [second, first]
    assert rows[0]["type"] == "add"
    assert rows[0]["state"] == "ready"


def test_ls_narrows(cli: CommandLine) -> None:
    (image,) = cli.enqueue(queue="images", type="resize")
    (later,) = cli.enqueue(delay_ms=3_600_000)
    cli.enqueue()

    def found(*options: str) -> list[str]:
        return [task["task_id"] for task in cli.json("tasks", "ls", *options)["tasks"]]

    assert found("--queue", "images") == [image]
    assert found("--type", "resize") == [image]
    assert found("--state", "scheduled") == [later]
    assert len(found("--state", "scheduled", "--state", "ready")) == 3
    assert found("--state", "dead_lettered") == []


def test_ls_goes_on_with_the_cursor_until_all_were_seen_once(cli: CommandLine) -> None:
    task_ids = cli.enqueue(5)
    seen: list[str] = []
    options: list[str] = []
    while True:
        page = cli.json("tasks", "ls", "--limit", "2", *options)
        seen += [task["task_id"] for task in page["tasks"]]
        if page["cursor"] is None:
            break
        options = ["--cursor", page["cursor"]]
    assert sorted(seen) == sorted(task_ids)
    assert "--cursor" in cli.run("tasks", "ls", "--limit", "2").stderr


def test_a_cursor_that_is_none_is_a_wrong_call(cli: CommandLine) -> None:
    cli.enqueue()
    is_one_line(cli.run("tasks", "ls", "--cursor", "elsewhere"), 2)


def test_show_has_arguments_result_and_history(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    (task,) = cli.claim()
    cli.settle(lifecycle.ack(task.task_id, task.token, b'{"sum":3}'))
    shown = cli.json("tasks", "show", task_id)
    assert (shown["state"], shown["arguments"], shown["result"]) == ("succeeded", {"a": 1}, {"sum": 3})
    assert [attempt["outcome"] for attempt in shown["history"]] == ["succeeded"]
    text = cli.ok("tasks", "show", task_id)
    assert 'result\t{"sum": 3}' in text
    assert "worker-1" in text


def test_text_from_outside_cannot_drive_the_terminal(cli: CommandLine) -> None:
    evil = Failure("builtins.ValueError", "\x1b]0;owned\x07\x9b31m\u202e[red]", "one\x1b[2J\ntwo")
    (task_id,) = cli.dead_letters(error=evil, payload='{"a":"\u202e\x7f"}'.encode())
    for command in (["tasks", "show", task_id], ["dead", "show", task_id], ["dead", "ls"], ["tasks", "why", task_id]):
        for options in ([], ["--json"]):
            text = cli.ok(*command, *options)
            assert not set(text) & set("\x1b\x07\x9b\u202e"), command
    assert "\\x1b]0;owned" in cli.ok("dead", "ls")


def test_cancel_of_a_waiting_task(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    assert cli.ok("tasks", "cancel", task_id, "--reason", "too late") == f"{task_id} is cancelled\n"
    shown = cli.json("tasks", "show", task_id)
    assert (shown["state"], shown["reason"]) == ("cancelled", "too late")
    assert "before" in cli.ok("tasks", "cancel", task_id)


def test_cancel_of_a_running_task_tells_it(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.claim()
    assert "being told" in cli.ok("tasks", "cancel", task_id)
    assert cli.json("tasks", "show", task_id)["cancel_requested"] is True


def test_cancel_of_a_finished_task_is_a_no(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    (task,) = cli.claim()
    cli.settle(lifecycle.ack(task.task_id, task.token))
    assert "is succeeded" in is_one_line(cli.run("tasks", "cancel", task_id), 1)


def test_cancel_of_several_says_which_were_refused(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    result = cli.run("tasks", "cancel", task_id, "0" * 32)
    assert result.exit_code == 1
    assert result.stdout == f"{task_id} is cancelled\n"
    assert "no task 0000" in result.stderr
