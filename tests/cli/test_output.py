from __future__ import annotations

import signal
import subprocess

import pytest

from holdfast.admin.inspect import about_ms, first_line, printable
from holdfast.core.task import Failure
from tests.cli.conftest import CommandLine
from tests.support import environment, holdfast_command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – größer ✓", "plain – größer ✓"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("one\ntwo\ttabs\r", "one\\ntwo\\ttabs\\r"),
        ("\u202ereversed", "\\u202ereversed"),
        ("\udcff", "\\udcff"),
    ],
)
def test_printable_escapes_what_drives_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0ms"), (999, "999ms"), (1_249, "1.2s"), (9_999, "10s"), (250_400, "4m10s"), (90_061_000, "1d1h")],
)
def test_about_rounds_to_what_is_read(milliseconds: int, text: str) -> None:
    assert about_ms(milliseconds) == text


def test_first_line_is_cut() -> None:
    assert first_line("  one  \ntwo") == "one"
    assert first_line("x" * 20, 10) == "x" * 9 + "…"


def test_a_terminal_gets_tables_in_which_data_is_no_markup(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.output.at_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    (task_id,) = cli.dead_letters(error=Failure("Odd", "[red]boom[/red] [/]"))
    shown = cli.ok("dead", "ls")
    assert "[red]boom[/red] [/]" in shown
    assert "───" in shown
    assert "[red]boom" in cli.ok("dead", "show", task_id)
    for command in (["queues", "ls"], ["workers", "ls"], ["tasks", "ls"], ["doctor"], ["dead", "ls", "--by-error"]):
        assert "\t" not in cli.ok(*command)


def test_a_reader_that_leaves_early_is_no_error(cli: CommandLine) -> None:
    cli.enqueue(1_000)
    command = holdfast_command("tasks", "ls", "--limit", "1000", "--url", cli.url)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_ctrl_c_while_waiting_is_quiet(cli: CommandLine) -> None:
    command = holdfast_command("enqueue", "add", "--force", "--wait", "--url", cli.url)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("task ")
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == ""
    assert process.returncode == 130
