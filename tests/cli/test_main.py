from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.examples import EXAMPLES, GROUPS
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


_WITHOUT_STORE = {("celery", "check"), ("celery", "drain"), ("celery", "beat"), ("completion",), ("init",)}


def test_every_command_takes_url_and_json() -> None:
    for path, command in _leaves(main):
        options = {option for parameter in command.params for option in parameter.opts}
        needed = {"--url", "--log-format"} if path == ("worker",) else {"--url", "--json"}  # a worker prints logs only
        assert path in _WITHOUT_STORE or needed <= options, path


@pytest.mark.parametrize("start", [["-m", "holdfast"], ["-m", "holdfast.cli.main"]])
def test_it_runs_as_a_module(start: list[str]) -> None:
    command = [sys.executable, *start, "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert shown.stdout == f"holdfast {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], "No such command 'frobnicate'; see holdfast --help"),
        (["wroker"], "No such command 'wroker'; did you mean worker? See holdfast --help"),
        (["tasks", "lst"], "did you mean 'ls'? See holdfast tasks --help"),
        (["tasks"], "Missing command"),
        (["tasks", "ls", "--colour"], "--colour"),
        (["tasks", "show"], "TASK_ID"),
        (["tasks", "ls", "--state", "lost"], "'lost' is not one of"),
        (["tasks", "ls", "--limit", "0"], "--limit"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_2(arguments: list[str], words: str) -> None:
    assert words in is_one_line(CliRunner().invoke(main, arguments, prog_name="holdfast"), 2)


def test_every_command_has_an_example_that_can_be_called() -> None:
    for path, command in _leaves(main):
        examples = EXAMPLES[" ".join(path)]
        assert examples, path
        for example in examples:
            words = shlex.split(example.partition(" > ")[0])
            assert words[: len(path) + 1] == ["holdfast", *path]
            command.make_context(path[-1], words[len(path) + 1 :])
        assert examples[0] in CliRunner().invoke(main, [*path, "--help"]).stdout


def test_every_command_is_in_a_group_of_the_help() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(main.list_commands(click.Context(main)))


def test_help_is_as_wide_as_the_terminal_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for width, widest in ((80, 80), (100, 100), (200, 100)):
        monkeypatch.setenv("COLUMNS", str(width))
        for path, _ in _leaves(main):
            text = CliRunner().invoke(main, [*path, "--help"]).stdout
            told, _, _ = text.partition("Examples:")
            assert max(map(len, told.splitlines())) <= widest, text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell])
    assert script.exit_code == 0
    assert "_HOLDFAST_COMPLETE" in script.stdout


def test_bash_completes_commands_and_options() -> None:
    def offered(words: str) -> str:
        asked = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "holdfast"]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**environment(), **asked}
        ).stdout

    assert "plain,run-now" in offered("holdfast tasks r")
    assert "plain,--since" in offered("holdfast tasks ls --s")


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"])
def test_init_creates_a_project_and_never_overwrites(store: str, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    made = CliRunner().invoke(main, ["init", str(folder), "--store", store])
    assert made.exit_code == 0, made.output
    beside = "holdfast-worker.service" if store == "sqlite" else "compose.yaml"
    assert sorted(path.name for path in folder.iterdir()) == sorted(["README.md", "tasks.py", beside])
    (folder / "tasks.py").write_text("mine")
    (folder / "README.md").unlink()
    assert "already in" in is_one_line(CliRunner().invoke(main, ["init", str(folder), "--store", store]), 1)
    assert (folder / "tasks.py").read_text() == "mine"
    assert not (folder / "README.md").exists()


def test_the_unit_of_init_starts_the_command_that_made_it(tmp_path: Path) -> None:
    """systemd looks for commands in a fixed path, which no virtual environment is in."""
    folder = tmp_path / "100% shop"
    CliRunner().invoke(main, ["init", str(folder)])
    unit = (folder / "holdfast-worker.service").read_text()
    command = re.search(r'^ExecStart="?(/.+?)"? worker tasks:app$', unit, re.MULTILINE)
    assert command is not None, unit
    assert command[1] == str(Path(sys.executable).with_name("holdfast"))
    assert f"WorkingDirectory={tmp_path}/100%% shop\n" in unit


@pytest.mark.parametrize(
    ("store", "module", "steps"),
    [
        ("sqlite", "redis", "cd shop && holdfast worker tasks:app"),
        ("redis", "psycopg", "cd shop && docker compose up -d && holdfast worker tasks:app"),
        ("redis", "redis", "cd shop && pip install redis hiredis && docker compose up -d && holdfast worker tasks:app"),
        (
            "postgres",
            "psycopg",
            "cd shop && pip install 'psycopg[binary]' && docker compose up -d && holdfast worker tasks:app",
        ),
    ],
)
def test_init_names_the_next_steps(
    store: str, module: str, steps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("holdfast.cli.scaffold.find_spec", lambda name: None if name == module else object())
    made = CliRunner().invoke(main, ["init", "shop", "--store", store])
    assert made.stdout.splitlines()[-1] == f"Next: {steps} (README.md has more)"
    assert ("pip install" in (tmp_path / "shop" / "README.md").read_text()) == (store != "sqlite")


def test_the_project_of_init_runs_with_its_app_from_the_environment(tmp_path: Path) -> None:
    CliRunner().invoke(main, ["init", str(tmp_path)])
    holdfast = [sys.executable, "-m", "holdfast"]
    env = environment(more={"HOLDFAST_APP": "tasks:app"})
    enqueue = [*holdfast, "enqueue", "tasks.greet", "--args", '{"name": "Ada"}']
    subprocess.run(enqueue, cwd=tmp_path, env=env, check=True, capture_output=True)
    subprocess.run([*holdfast, "worker", "--burst"], cwd=tmp_path, env=env, check=True, capture_output=True)
    listed = subprocess.run(
        [*holdfast, "tasks", "ls", "--json"], cwd=tmp_path, env=env, check=True, capture_output=True
    )
    assert [task["state"] for task in json.loads(listed.stdout)["tasks"]] == ["succeeded"]


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.queues.with_store", interrupted)
    result = CliRunner().invoke(main, ["queues", "ls"])
    assert result.exit_code == 130
    assert result.output.strip() == ""


@pytest.mark.parametrize("group", ["tasks", "dead", "queues", "schedules", "workers", "partitions", "token", "celery"])
def test_no_summary_of_a_command_is_cut_at_80_columns(group: str) -> None:
    text = CliRunner().invoke(main, [group, "--help"], terminal_width=80).stdout
    assert [line for line in text.partition("Commands:")[2].splitlines() if line.endswith("...")] == []


def test_no_option_is_a_range_of_integers() -> None:
    for command in (["bench"], ["demo"], ["doctor"], ["server"], ["schedules", "next"]):
        assert "RANGE]" not in CliRunner().invoke(main, [*command, "--help"]).stdout, command
