"""`holdfast schedules`: made, listed, shown, changed, run and removed; one line and an exit code for what cannot be."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.admin import schedules as actions
from holdfast.cli.main import main
from holdfast.core.declared import DeclaredType
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from tests.cli.conftest import CommandLine, is_one_line

NIGHTLY = ("put", "nightly", "--type", "report", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--force")


@pytest.fixture
def nightly(cli: CommandLine) -> CommandLine:
    cli.ok("schedules", *NIGHTLY, "--args", '{"region": "eu"}', "--queue", "reports", "--priority", "5")
    return cli


def test_a_schedule_is_made_listed_and_shown(nightly: CommandLine) -> None:
    (row,) = nightly.rows("schedules", "ls")
    assert (row["name"], row["type"], row["queue"]) == ("nightly", "report", "reports")
    assert (row["when"], row["status"], row["source"]) == ("0 3 * * * Europe/Berlin", "", "")
    assert datetime.fromisoformat(row["next occurrence"]).hour == 3
    shown = nightly.ok("schedules", "show", "nightly")
    facts = dict(line.split("\t") for line in shown.splitlines() if "\t" in line)
    assert facts["arguments"] == '{"region": "eu"}'
    assert (facts["in words"], facts["missed"], facts["overlap"]) == ("At 03:00 every day", "once", "allow")
    assert shown.count("T03:00:00+0") == 5
    view = nightly.json("schedules", "show", "nightly")
    assert view["call"]["arguments"] == {"region": "eu"}
    assert (view["timing"]["cron"], view["call"]["priority"], len(view["next"])) == ("0 3 * * *", 5, 5)
    assert [each["name"] for each in nightly.json("schedules", "ls")] == ["nightly"]


def test_the_next_occurrences(nightly: CommandLine) -> None:
    times = nightly.ok("schedules", "next", "nightly", "-n", "3").splitlines()
    assert len(times) == 3
    assert [datetime.fromisoformat(time).hour for time in times] == [3, 3, 3]
    assert nightly.json("schedules", "next", "nightly", "-n", "3") == times
    nightly.ok("schedules", "put", "utc", "--type", "t", "--every", "1h", "--force")
    assert all(time.endswith(":00:00Z") for time in nightly.json("schedules", "next", "utc"))


def test_only_what_is_given_is_changed(nightly: CommandLine) -> None:
    out = nightly.ok("schedules", "edit", "nightly", "--cron", "30 4 * * *", "--overlap", "skip", "--args", '{"a":1}')
    assert "T04:30:00+0" in out
    view = nightly.json("schedules", "edit", "nightly", "--priority", "-1", "--missed", "all", "--window", "2h")
    assert (view["timing"]["cron"], view["timing"]["timezone"]) == ("30 4 * * *", "Europe/Berlin")
    assert (view["timing"]["overlap"], view["timing"]["missed"], view["timing"]["window_ms"]) == (
        "skip",
        "all",
        7_200_000,
    )
    assert (view["call"]["arguments"], view["call"]["queue"], view["call"]["priority"]) == ({"a": 1}, "reports", -1)
    every = nightly.json("schedules", "edit", "nightly", "--every", "10m")["timing"]
    assert (every["every_ms"], every["cron"], every["timezone"]) == (600_000, None, "UTC")


def test_pause_resume_and_the_end(nightly: CommandLine) -> None:
    nightly.ok("schedules", "put", "other", "--type", "t", "--every", "1h", "--force")
    assert (
        nightly.ok("schedules", "pause", "nightly", "other") == "schedule nightly is paused\nschedule other is paused\n"
    )
    assert [row["status"] for row in nightly.rows("schedules", "ls")] == ["paused", "paused"]
    assert "next occurrence paused" in nightly.ok("schedules", "edit", "other", "--every", "2h")
    (resumed,) = nightly.json("schedules", "resume", "nightly")
    assert not resumed["paused"]
    assert (
        nightly.ok("schedules", "rm", "nightly", "other") == "schedule nightly is removed\nschedule other is removed\n"
    )
    assert nightly.rows("schedules", "ls") == []


def test_a_task_is_made_now(nightly: CommandLine) -> None:
    task_id = nightly.ok("schedules", "run", "nightly").strip()
    task = nightly.json("tasks", "show", task_id)
    assert (task["type"], task["queue"], task["headers"]) == ("report", "reports", {"schedule": "nightly"})
    assert nightly.json("schedules", "run", "nightly")["task_id"] != task_id
    nightly.ok("schedules", "edit", "nightly", "--overlap", "queue")
    assert "does not overlap" in is_one_line(nightly.run("schedules", "run", "nightly"), 1)


def test_the_type_must_be_known(cli: CommandLine) -> None:
    put = ("schedules", "put", "s", "--every", "1h")
    cli.ok("migrate")
    assert "no worker is running" in is_one_line(cli.run(*put, "--type", "add"), 2)
    cli.announce(queues=("sums",), types=("add",))
    cli.publish(DeclaredType(name="add", queue="sums", parameters=()))
    assert "no running worker knows the type ad (did you mean add?)" in is_one_line(cli.run(*put, "--type", "ad"), 2)
    assert cli.json(*put, "--type", "add")["call"]["queue"] == "sums"


def test_an_app_checks_the_call_and_gives_its_options(cli: CommandLine, tmp_path: Path) -> None:
    app = ("--app", "tests.worker.apps.jobs:app")
    put = ("schedules", "put", "s", "--every", "1h", *app)
    assert "has no task type nix; it has" in is_one_line(cli.run(*put, "--type", "nix"), 2)
    assert "missing argument" in is_one_line(cli.run(*put, "--type", "add"), 2)
    view = cli.json(*put, "--type", "add", "--args", "[7, 1]")
    assert view["call"]["arguments"] == {"a": 7, "b": 1}
    assert cli.json("schedules", "edit", "s", *app, "--args", '{"a": 8, "b": 2}')["call"]["arguments"] == {
        "a": 8,
        "b": 2,
    }
    assert "unknown argument" in is_one_line(cli.run("schedules", "edit", "s", *app, "--args", '{"x": 8}'), 2)


def test_a_declared_schedule_says_so(cli: CommandLine) -> None:
    declared = Schedule(name="beat", timing=Timing(every_ms=60_000), call=ScheduledCall(type="t"))
    cli.store(lambda store: actions.declare(store, [declared], "shop:app"))
    put = cli.run("schedules", "put", "beat", "--type", "t", "--every", "1h", "--force")
    assert "declared in shop:app" in is_one_line(put, 1)
    gone = cli.run("schedules", "rm", "beat")
    assert gone.exit_code == 0
    assert "comes back when a worker of it starts" in gone.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "advice"),
    [
        (("put", "s", "--type", "t", "--force"), 2, "either a cron line or an interval"),
        (("put", "s", "--every", "1h", "--force"), 2, "Missing option '--type'"),
        (("put", "s", "--type", "t", "--force", "--cron", "61 * * * *"), 2, "bad minute"),
        (("put", "s", "--type", "t", "--force", "--cron", "@daily", "--timezone", "Mars"), 2, "'Mars' is unknown"),
        (("put", "s", "--type", "t", "--force", "--every", "-1s"), 2, "every: '-1s' is not a duration"),
        (("put", "s", "--type", "t", "--force", "--every", "1ms"), 2, "the shortest interval is 1s"),
        (("put", "s", "--type", "t", "--force", "--every", "1h", "--cron", "@daily"), 2, "exclude each other"),
        (
            ("put", "s", "--type", "t", "--force", "--every", "1h", "--args", "[1]"),
            2,
            "a list needs the names",
        ),
        (("put", "s", "--type", "t", "--force", "--every", "1h", "--args", "{"), 2, "--args is not JSON"),
        (("put", "s", "--type", "t", "--force", "--every", "1h", "--priority", "999"), 2, "priority 999 is refused"),
        (("put", "s s", "--type", "t", "--force", "--every", "1h"), 2, "schedule name 's s' is refused"),
        (("put", "s", "--type", "t", "--force", "--every", "1h", "--missed", "no"), 2, "'no' is not one of"),
        (("edit", "nightly"), 2, "nothing to change"),
        (("edit", "nightly", "--timezone", "Mars"), 2, "'Mars' is unknown"),
        (("edit", "nix", "--every", "1h"), 1, "no schedule nix in sqlite:///"),
        (("show", "nix"), 1, "no schedule nix"),
        (("next", "nix"), 1, "no schedule nix"),
        (("next", "nightly", "-n", "0"), 2, "0 is not in the range"),
        (("run", "nix"), 1, "no schedule nix"),
        (("pause", "nix"), 1, "no schedule nix"),
        (("resume", "nix"), 1, "no schedule nix"),
        (("rm", "nix"), 1, "no schedule nix"),
    ],
)
def test_what_cannot_be_is_one_line_and_an_exit_code(
    nightly: CommandLine, arguments: tuple[str, ...], code: int, advice: str
) -> None:
    assert advice in is_one_line(nightly.run("schedules", *arguments), code)
    assert [each["name"] for each in nightly.json("schedules", "ls")] == ["nightly"]


@pytest.mark.parametrize(
    "command", [("show",), ("next",), ("run",), ("pause",), ("resume",), ("rm",), ("edit", "--every", "1h")]
)
def test_a_name_that_is_misspelt_is_named_with_the_right_one(nightly: CommandLine, command: tuple[str, ...]) -> None:
    verb, *options = command
    line = is_one_line(nightly.run("schedules", verb, "nigthly", *options), 1)
    assert line == f"holdfast: no schedule nigthly in {nightly.url}: did you mean nightly?\n"
    line = is_one_line(nightly.run("schedules", verb, "xyz", *options), 1)
    assert line.endswith(": holdfast schedules ls lists them\n")


def test_nobody_looks_for_schedules_where_there_is_no_database(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["schedules", "ls", "--url", f"sqlite:///{tmp_path}/none.db"])
    assert "there is no database" in is_one_line(result, 1)


def test_the_help_names_the_choices(cli: CommandLine) -> None:
    text = CliRunner().invoke(main, ["schedules", "put", "--help"]).stdout
    assert "[skip|once|all]" in text
    assert "[allow|skip|queue]" in text
    assert (
        json.loads(cli.ok("schedules", "put", "s", "--type", "t", "--every", "1h", "--force", "--json"))["version"] == 1
    )
