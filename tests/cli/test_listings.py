"""Every listing in terminals of 80, 120 and 200 columns: no line is wider, the important columns are there."""

from __future__ import annotations

import functools
import os
import pty
import re
import signal
import subprocess
from itertools import pairwise

import pytest
from rich.cells import cell_len

from holdfast.admin import tokens
from holdfast.admin.search import search
from holdfast.cli.tables import Column, rendered, shortest
from holdfast.core.task import Failure
from tests.cli.conftest import CommandLine, is_one_line
from tests.support import environment, holdfast_command

WORKER = "build-host-7.example.internal:48213:0f3c"
#: With the columns that are shown in the narrowest of them.
LISTINGS = {
    ("tasks", "ls"): ("task_id", "type", "state"),
    ("dead", "ls"): ("task_id", "type", "error"),
    ("dead", "ls", "--by-error"): ("count", "type", "error"),
    ("queues", "ls"): ("queue", "ready", "claimed", "dead_lettered"),
    ("workers", "ls"): ("worker", "status"),
    ("workers", "show", "worker-1"): ("task", "type", "since"),
    ("schedules", "ls"): ("name", "when", "next occurrence"),
    ("partitions", "ls"): ("partition", "server", "depth"),
    ("token", "ls"): ("id", "scopes", "expires"),
    ("doctor",): ("check", "finding"),
}


@pytest.fixture
def full(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """A store with tasks in every state and long names, at a terminal without colours."""
    monkeypatch.setattr("holdfast.cli.output.at_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    error = Failure("billing.errors.PaymentRefused", "the card of customer 4711 was refused by the bank: try again")
    cli.dead_letters(2, error=error, type="billing.charge_customer", queue="billing-eu")
    cli.dead_letters(error=Failure("builtins.ValueError", "größe ✓ 漢字漢字 is no size"))
    cli.enqueue(3, type="images.resize_and_upload", queue="images")
    cli.enqueue(delay_ms=3_600_000, type="reports.monthly_summary_of_everything", priority=-10)
    cli.enqueue(type="mail.send")
    cli.claim()
    cli.announce(worker_id=WORKER, queues=("default", "images", "billing-eu", "mail"), types=("mail.send",))
    cli.announce(worker_id="worker-1")
    every = ("--type", "reports.monthly", "--queue", "default", "--force")
    cli.ok(
        "schedules", "put", "monthly-report-of-everything", "--cron", "0 3 1 * *", "--timezone", "Europe/Berlin", *every
    )
    cli.store(
        lambda store: tokens.create(store, ["enqueue:mail", "read", "manage"], now_ms=1, note="continuous integration")
    )
    return cli


@pytest.mark.parametrize("width", [80, 120, 200])
def test_every_listing_fits(full: CommandLine, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for listing, needed in LISTINGS.items():
        shown = full.run(*listing).stdout
        lines = shown.splitlines()
        assert max(map(cell_len, lines)) <= width, shown
        header = next(line for line, rule in pairwise(lines) if rule.startswith("──"))
        assert all(re.search(rf"\b{name}\b", header) for name in needed), shown


def test_what_is_shortened_is_enough_for_a_command(full: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = [line.split()[0] for line in full.ok("tasks", "ls").splitlines()[2:]]
    assert all(len(task_id) < 32 for task_id in shown)
    assert [full.json("tasks", "show", task_id)["task_id"][: len(task_id)] for task_id in shown] == shown


def test_a_pipe_gets_all_columns_and_whole_ids(full: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.output.at_terminal", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")
    header, *rows = full.ok("tasks", "ls").splitlines()
    assert header.split("\t") == ["task_id", "type", "queue", "state", "priority", "attempts", "created", "note"]
    assert all(len(row.split("\t")[0]) == 32 for row in rows)


def test_columns_go_by_rank_and_texts_are_cut_last() -> None:
    columns = [Column("name"), Column("less", 1), Column("least", 2), Column("text", kind="long")]
    rows = [["n" * 20, "l" * 20, "m" * 20, "x" * 60]]

    def header(width: int) -> list[str]:
        lines = rendered(columns, rows, width)
        assert all(len(line) <= width for line in lines)
        return lines[0].replace("\x1b[1m", "").replace("\x1b[0m", "").split()

    assert header(126) == header(110) == ["name", "less", "least", "text"]
    assert header(100) == ["name", "less", "text"]
    assert header(70) == header(40) == ["name", "text"]


def test_ids_are_shown_as_far_as_they_differ() -> None:
    assert shortest(["a" * 32]) == 12
    assert shortest(["a" * 20 + "b" * 12, "a" * 32, "a" * 32]) == 21


def test_a_terminal_has_colours_unless_they_are_not_wanted(full: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert "\x1b[" not in full.ok("tasks", "ls")
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[31mdead_lettered" in full.ok("tasks", "ls")
    assert "\x1b[32mok" in full.run("doctor").stdout
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in full.ok("tasks", "ls")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("holdfast.cli.output.at_terminal", lambda: False)
    assert "\x1b[" not in full.ok("tasks", "ls")


def test_watch_shows_the_listing_again_until_ctrl_c(cli: CommandLine) -> None:
    cli.enqueue()
    terminal, side = pty.openpty()
    command = holdfast_command("tasks", "ls", "--watch", "200ms", "--url", cli.url)
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment()) as process:
        os.close(side)
        seen = b""
        while seen.count(b"Ctrl-C ends") < 1 or b"add" not in seen:
            seen += os.read(terminal, 4096)
        (later,) = cli.enqueue(type="later")
        while later[:12].encode() not in seen:
            seen += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
    os.close(terminal)
    assert process.returncode == 0


def test_watch_needs_a_terminal(cli: CommandLine) -> None:
    cli.enqueue()
    assert "--watch needs a terminal" in is_one_line(cli.run("queues", "ls", "--watch"), 2)


def test_a_frame_is_no_longer_than_the_terminal(full: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.listing.time.sleep", interrupted)
    monkeypatch.setenv("LINES", "6")
    shown = full.ok("tasks", "ls", "--watch")
    assert "more lines" in shown
    assert shown.count("\x1b[K\n") == 5


# -- filters and ids -----------------------------------------------------------------------------------------


def test_listings_are_narrowed_by_time_error_and_argument(any_cli: CommandLine) -> None:
    dead = any_cli.dead_letters(payload=b'{"user":{"id":7}}', error=Failure("shop.Refused", "no"))
    any_cli.dead_letters(payload=b'{"user":{"id":8}}')
    any_cli.enqueue(payload=b'{"user":{"id":9}}')

    def found(*command: str) -> list[str]:
        return [task["task_id"] for task in any_cli.json(*command)["tasks"]]

    assert found("dead", "ls", "--arg", "user.id=7") == dead
    assert found("tasks", "ls", "--error", "shop.Refused") == dead
    assert found("dead", "ls", "--error", "shop.Refused", "--arg", "user.id=8") == []
    assert len(found("tasks", "ls", "--since", "1h")) == 3
    assert found("tasks", "ls", "--since", "2100-01-01T00:00Z") == found("tasks", "ls", "--until", "1h") == []
    assert len(found("dead", "ls", "--until", "2100-01-01T00:00Z")) == 2


@pytest.mark.parametrize(
    "options",
    [["--since", "yesterday"], ["--since", "1h", "--until", "2h"], ["--arg", "7"], ["--since", "2030-01-01T00:00"]],
)
def test_a_filter_that_makes_no_sense_is_a_wrong_call(cli: CommandLine, options: list[str]) -> None:
    cli.enqueue()
    is_one_line(cli.run("tasks", "ls", *options), 2)


def test_a_search_that_was_cut_short_says_so(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.enqueue(5)
    short = functools.partial(search, scan_limit=3)
    monkeypatch.setattr("holdfast.cli.tasks.search", short)
    result = cli.run("tasks", "ls", "--arg", "a=2")
    assert result.stderr.startswith("The search ended after 3 tasks; to search on: --cursor ")


def test_commands_take_the_beginning_of_an_id(any_cli: CommandLine) -> None:
    first, second = any_cli.enqueue(2)
    (dead,) = any_cli.dead_letters(queue="other")
    for command in ("show", "why", "log"):
        any_cli.ok("tasks", command, first[:20])
    assert any_cli.ok("tasks", "cancel", first[:20]) == f"{first} is cancelled\n"
    assert any_cli.ok("tasks", "prioritize", second[:20], "--priority", "3").startswith(second)
    any_cli.ok("dead", "show", dead[:20])
    assert any_cli.ok("dead", "replay", dead[:20]).startswith(dead)
    assert "several tasks begin with" in is_one_line(any_cli.run("tasks", "show", first[:6]), 1)
    assert "no dead letter" in is_one_line(any_cli.run("dead", "replay", "abcdef123456"), 1)
    too_short = "'abc' is too short for a task_id: write at least its first 6 digits"
    assert too_short in is_one_line(any_cli.run("tasks", "show", "abc"), 2)
    no_digits = is_one_line(any_cli.run("tasks", "show", "xyz"), 2)
    assert "'xyz' is not a task_id: a task_id is 32 hex digits, as printed by enqueue; see" in no_digits


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("tasks", "ls", "--queue", "defualt"), "There is no queue defualt: did you mean default?\n"),
        (("tasks", "ls", "--queue", "nowhere"), "There is no queue nowhere.\n"),
        (("tasks", "ls", "--type", "ad"), "No worker knows the type ad: did you mean add?\n"),
        (("tasks", "ls", "--type", "resize"), ""),
        (("tasks", "ls", "--queue", "default", "--state", "failed"), ""),
        (("dead", "ls", "--queue", "imagse"), "There is no queue imagse: did you mean images?\n"),
        (("tasks", "cancel", "--all", "--queue", "imgaes", "--yes"), "no queue imgaes: did you mean images?\n"),
        (("dead", "discard", "--all", "--type", "addd", "--reason", "x", "--yes"), "did you mean add?\n"),
    ],
)
def test_a_filter_that_matches_nothing_for_its_name_says_so(
    cli: CommandLine, command: tuple[str, ...], said: str
) -> None:
    cli.announce(queues=("default", "images"))
    cli.enqueue()
    found = cli.run(*command)
    assert found.exit_code == 0
    assert found.stderr == said if said == "" else found.stderr.endswith(said)


def test_a_state_that_is_misspelt_is_named_with_the_right_one(cli: CommandLine) -> None:
    for command in (("tasks", "ls"), ("tasks", "cancel", "--all", "--yes"), ("queues", "purge", "default", "--yes")):
        line = is_one_line(cli.run(*command, "--state", "reday"), 2)
        assert "'reday' is not one of" in line
        assert "did you mean ready?" in line
    assert "is not one of 'blocked'" in is_one_line(cli.run("tasks", "ls", "--state", "xyz"), 2)


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_a_duration_that_cannot_be_read_is_named_by_its_option(cli: CommandLine, option: str) -> None:
    assert f"{option}: '5x' is not a duration" in is_one_line(cli.run("tasks", "ls", option, "5x"), 2)
