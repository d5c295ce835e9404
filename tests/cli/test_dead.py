from __future__ import annotations

import pytest

from holdfast.core.task import Failure
from holdfast.stores import documents
from tests.cli.conftest import CommandLine, is_one_line

TIMEOUT = Failure("builtins.TimeoutError", "too slow")


def depth(cli: CommandLine) -> int:
    return len(cli.json("dead", "ls", "--limit", "1000")["tasks"])


def test_ls_shows_the_error(cli: CommandLine) -> None:
    (task_id,) = cli.dead_letters()
    (row,) = cli.rows("dead", "ls")
    assert row["task_id"] == task_id
    assert row["error"] == "ValueError: bad luck"
    assert row["reason"] == "max_attempts"


def test_ls_of_none_is_fine(cli: CommandLine) -> None:
    cli.enqueue()
    assert cli.rows("dead", "ls") == []


def test_ls_narrows_by_queue_type_and_error(cli: CommandLine) -> None:
    (slow,) = cli.dead_letters(error=TIMEOUT)
    (image,) = cli.dead_letters(queue="images", type="resize")

    def found(*options: str) -> list[str]:
        return [task["task_id"] for task in cli.json("dead", "ls", *options)["tasks"]]

    assert found("--queue", "images") == found("--type", "resize") == [image]
    assert found("--error", "builtins.TimeoutError") == [slow]
    assert found("--error", "TimeoutError") == [slow]


def test_by_error_counts_each_kind(cli: CommandLine) -> None:
    cli.dead_letters(3)
    cli.dead_letters(2, error=TIMEOUT)
    found = cli.json("dead", "ls", "--by-error")
    assert [(group["error_type"], group["count"]) for group in found["groups"]] == [
        ("builtins.ValueError", 3),
        ("builtins.TimeoutError", 2),
    ]
    assert (found["looked_at"], found["complete"]) == (5, True)
    rows = [(row["error"], row["count"]) for row in cli.rows("dead", "ls", "--by-error")]
    assert rows == [("ValueError", "3"), ("TimeoutError", "2")]


def test_show_has_the_traceback(cli: CommandLine) -> None:
    (task_id,) = cli.dead_letters()
    assert "Traceback: bad luck" in cli.ok("dead", "show", task_id)


def test_show_of_a_living_task_is_a_no(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    assert "not a dead letter" in is_one_line(cli.run("dead", "show", task_id), 1)


def test_replay_puts_it_back_with_fresh_attempts(cli: CommandLine) -> None:
    (task_id,) = cli.dead_letters()
    assert "ready again" in cli.ok("dead", "replay", task_id)
    shown = cli.json("tasks", "show", task_id)
    assert (shown["state"], shown["attempt"]) == ("ready", 0)
    assert "is ready" in is_one_line(cli.run("dead", "replay", task_id), 1)


def test_replay_all_is_narrowed_and_prints_the_count(cli: CommandLine) -> None:
    cli.dead_letters(3, error=TIMEOUT)
    cli.dead_letters(2)
    assert cli.ok("dead", "replay", "--all", "--error", "TimeoutError", "--yes") == "replayed 3 dead letters\n"
    assert depth(cli) == 2


def test_replay_all_stops_at_the_limit_and_says_so(cli: CommandLine) -> None:
    cli.dead_letters(5)
    result = cli.run("dead", "replay", "--all", "--limit", "2", "--yes", "--json")
    assert '"replayed": 2' in result.stdout
    assert "There may be more" in result.stderr
    assert depth(cli) == 3


def test_replay_at_a_rate_replays_all(cli: CommandLine) -> None:
    cli.dead_letters(5)
    assert cli.json("dead", "replay", "--all", "--rate", "100", "--yes") == {"matched": 5, "replayed": 5}


def test_discard_keeps_a_record_with_payload_and_reason(cli: CommandLine) -> None:
    (task_id,) = cli.dead_letters()
    assert "is discarded" in cli.ok("dead", "discard", task_id, "--reason", "customer left")
    is_one_line(cli.run("tasks", "show", task_id), 1)
    (record,) = cli.store(documents.discards)
    assert (record.task_id, record.reason, record.payload) == (task_id, "customer left", b'{"a":1}')


def test_discard_all_prints_the_count(cli: CommandLine) -> None:
    cli.dead_letters(3)
    assert cli.ok("dead", "discard", "--all", "--reason", "old", "--yes") == "discarded 3 dead letters\n"
    assert depth(cli) == 0


def test_what_could_be_meant_in_two_ways_is_refused(cli: CommandLine) -> None:
    (task_id,) = cli.dead_letters()
    for options in (
        [],
        [task_id, "--all", "--yes"],
        [task_id, "--queue", "default"],
        ["--all"],
        ["--all", "--yes", "--rate", "0"],
        ["--all", "--yes", "--rate", "nan"],
        ["--all", "--yes", "--limit", "0"],
    ):
        is_one_line(cli.run("dead", "replay", *options), 2)
    is_one_line(cli.run("dead", "discard", task_id), 2)
    is_one_line(cli.run("dead", "discard", task_id, "--reason", " "), 2)
    assert depth(cli) == 1


def test_bulk_asks_first_where_somebody_can_answer(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.bulk.can_ask", lambda: True)
    cli.dead_letters(2)
    refused = cli.run("dead", "replay", "--all", stdin="n\n")
    assert refused.exit_code == 1
    assert "Replay 2 dead letters?" in refused.stderr
    assert depth(cli) == 2
    assert cli.run("dead", "replay", "--all", stdin="y\n").exit_code == 0
    assert depth(cli) == 0
