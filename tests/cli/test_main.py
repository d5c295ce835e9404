from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.main import main
from holdfast.version import __version__
from tests.cli.conftest import is_one_line
from tests.support import environment


def test_help_names_every_command_without_importing_any() -> None:
    code = (
        "import sys; from holdfast.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as error: assert error.code == 0\n"
        "assert not [name for name in sys.modules if name.startswith(('rich', 'holdfast.demo', 'holdfast.bench'))]"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert all(name in shown.stdout for name in main.list_commands(click.Context(main)))


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_every_command_is_found_under_its_name(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert command.help


def _leaves(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            found += _leaves(command, (*path, name))
        else:
            found.append(((*path, name), command))
    return found


def test_every_command_takes_url_and_json() -> None:
    for path, command in _leaves(main):
        options = {option for parameter in command.params for option in parameter.opts}
        needed = {"--url", "--log-format"} if path == ("worker",) else {"--url", "--json"}  # a worker prints logs only
        assert needed <= options, path


@pytest.mark.parametrize("start", [["-m", "holdfast"], ["-m", "holdfast.cli.main"]])
def test_it_runs_as_a_module(start: list[str]) -> None:
    command = [sys.executable, *start, "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert shown.stdout == f"holdfast {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["tasks"], "Missing command"),
        (["tasks", "ls", "--colour"], "--colour"),
        (["tasks", "show"], "TASK_ID"),
        (["tasks", "ls", "--state", "lost"], "'lost' is not one of"),
        (["tasks", "ls", "--limit", "0"], "--limit"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_2(arguments: list[str], words: str) -> None:
    assert words in is_one_line(CliRunner().invoke(main, arguments), 2)


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.queues.with_store", interrupted)
    result = CliRunner().invoke(main, ["queues", "ls"])
    assert result.exit_code == 130
    assert result.output.strip() == ""
