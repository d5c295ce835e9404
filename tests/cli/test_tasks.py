from __future__ import annotations

import pytest

from holdfast.core import lifecycle
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Failure, LogLine, Progress
from tests.cli.conftest import CommandLine, failed, is_one_line


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


def states(cli: CommandLine, task_ids: list[str]) -> list[str]:
    return [cli.json("tasks", "show", task_id)["state"] for task_id in task_ids]


def test_cancel_of_all_that_match_tells_those_that_run(any_cli: CommandLine) -> None:
    mail = any_cli.enqueue(3, queue="mail", type="send")
    mail += any_cli.enqueue(queue="mail", type="send", delay_ms=3_600_000)
    others = [*any_cli.enqueue(queue="mail"), *any_cli.enqueue(type="send")]
    any_cli.claim(queue="mail")
    answer = any_cli.ok("tasks", "cancel", "--all", "--queue", "mail", "--type", "send", "--reason", "sent", "--yes")
    assert answer == "cancelled 4 tasks, 1 of them running and being told to stop\n"
    assert states(any_cli, mail) == ["claimed", "cancelled", "cancelled", "cancelled"]
    assert states(any_cli, others) == ["ready", "ready"]
    assert any_cli.json("tasks", "show", mail[1])["reason"] == "sent"
    again = any_cli.json("tasks", "cancel", "--all", "--state", "ready", "--state", "scheduled", "--yes")
    assert again == {"matched": 2, "cancelled": 2, "running": 0}


def test_cancel_that_could_be_meant_in_two_ways_is_refused(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    for options in ([], ["--all"], [task_id, "--all", "--yes"], [task_id, "--state", "ready"]):
        is_one_line(cli.run("tasks", "cancel", *options), 2)
    is_one_line(cli.run("tasks", "cancel", "--all", "--yes", "--state", "succeeded"), 2)
    assert states(cli, [task_id]) == ["ready"]


def test_prioritize_moves_waiting_tasks_ahead(any_cli: CommandLine) -> None:
    first, second, third = any_cli.enqueue(3)
    assert any_cli.ok("tasks", "prioritize", third, second, "--priority", "7").splitlines() == [
        f"{third} has priority 7 now",
        f"{second} has priority 7 now",
    ]
    assert any_cli.json("tasks", "show", third)["priority"] == 7
    (running,) = any_cli.claim()
    assert running.task_id == second
    assert "is claimed" in is_one_line(any_cli.run("tasks", "prioritize", second, "--priority", "1"), 1)
    assert any_cli.ok("tasks", "prioritize", "--all", "--priority", "9", "--yes") == "prioritized 2 tasks\n"
    assert [task.task_id for task in any_cli.claim(2)] == [first, third]


@pytest.mark.parametrize("priority", ["101", "-101", "1.5", "high"])
def test_a_priority_out_of_range_is_a_wrong_call(cli: CommandLine, priority: str) -> None:
    (task_id,) = cli.enqueue()
    is_one_line(cli.run("tasks", "prioritize", task_id, f"--priority={priority}"), 2)


def test_progress_and_log_are_shown(any_cli: CommandLine) -> None:
    (task_id,) = any_cli.enqueue(policy=RunPolicy(timeout_ms=60_000, hard_timeout_ms=90_000, expires_ms=3_600_000))
    assert any_cli.ok("tasks", "log", task_id) == ""
    (task,) = any_cli.claim()
    lines = (LogLine(0, "info", "one\x1b[2J\ntwo"), LogLine(1_500, "warning", "three"))
    any_cli.tell(task, Progress(done=3, total=12_000, note="half way", log=lines))
    assert any_cli.ok("tasks", "log", task_id).splitlines() == [
        "1970-01-01T00:00:00.000Z info one\\x1b[2J two",
        "1970-01-01T00:00:01.500Z warning three",
    ]
    assert any_cli.json("tasks", "log", task_id)[1] == {"at_ms": 1_500, "level": "warning", "text": "three"}
    shown = any_cli.ok("tasks", "show", task_id)
    assert "progress\t3 of 12,000, half way\n" in shown
    assert "time limits\tasked to end after 1m, killed after 1m30s, to be started within 1h\n" in shown
    assert "log:\n    1970-01-01T00:00:00.000Z info one" in shown
    any_cli.settle(failed(task, Failure("builtins.ValueError", "bad luck", log=lines)))
    assert len(any_cli.json("tasks", "log", task_id)) == 2
