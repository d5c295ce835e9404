"""The docs know every command, option, error, state and environment variable that the code knows, and no page lies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest
from docs.generate import page as generated
from docs.generate import pages

import holdfast
from holdfast import errors
from holdfast.cli.main import main
from holdfast.core.lifecycle import TRANSITIONS, Event
from holdfast.core.task import State
from holdfast.demo.screen import COLUMNS
from tests.support import ROOT

DOCS = ROOT / "docs"
MARKDOWN = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "examples" / "README.md"]


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None, f"{path} {name} is listed and cannot be loaded"
        yield from commands(below, f"{path} {name}")


COMMANDS = dict(commands(main, "holdfast"))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_generated_parts_are_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == generated(text), f"{path.name} is out of date: run `make docs`"


def test_the_table_of_the_lifecycle_page_is_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (?:`(\w+)`|deleted) \|$", read("lifecycle.md"), re.MULTILINE)
    table = {(State(state), Event(event)): State(to) if to else None for state, event, to in rows}
    assert table == dict(TRANSITIONS)
    assert len(rows) == len(TRANSITIONS)


def test_the_lifecycle_page_explains_every_state_and_every_event() -> None:
    text = read("lifecycle.md")
    assert {state for state in State if not re.search(rf"^\| `{state}` \| [a-z]", text, re.MULTILINE)} == set()
    events = text.partition("## What the events mean")[2].partition("\n## ")[0]
    assert {event for event in Event if f"`{event}`" not in events} == set()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_is_documented_and_helpful(path: str) -> None:
    section = read("cli.md").partition(f"### `{path}`\n")[2].partition("\n### ")[0]
    assert section, f"{path} is not in docs/cli.md"
    assert COMMANDS[path].help
    for option in COMMANDS[path].params:
        if isinstance(option, click.Option):
            assert option.help, f"{path} {option.opts} says nothing of itself"
            assert option.opts[-1] in section


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_takes_json_and_a_url(path: str) -> None:
    if path in {"holdfast init", "holdfast completion"}:  # they use no store
        return
    options = {name for option in COMMANDS[path].params for name in option.opts}
    long_running = {"holdfast worker"}
    # `celery check` reads source only; `celery drain` and `celery beat` use the store of the app that they are given.
    assert "--url" in options or path == "holdfast demo" or path.startswith("holdfast celery ")
    assert "--json" in options or path in long_running


def error_classes() -> list[type[errors.HoldfastError]]:
    members = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]
    return [cls for cls in members if issubclass(cls, errors.HoldfastError)]


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_is_documented_and_drawn_in_the_tree(cls: type[errors.HoldfastError]) -> None:
    assert f"| `{cls.__name__}` |" in read("errors.md")
    assert re.search(rf"\b{cls.__name__}\b", errors.__doc__ or "")


def test_every_environment_variable_is_documented() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r"\bHOLDFAST_[A-Z_]+\b", sources))
    assert "HOLDFAST_URL" in used
    assert {name for name in used if f"`{name}`" not in read("api.md")} == set()


def test_every_public_name_is_in_the_api_page() -> None:
    text = read("api.md") + read("errors.md")
    assert {name for name in holdfast.__all__ if name != "__version__" and name not in text} == set()


@pytest.mark.parametrize("name", ["Holdfast", "Retry"])
def test_the_signature_in_the_api_page_is_the_real_one(name: str) -> None:
    written = re.search(rf"^{name}\((.*)\)$", read("api.md"), re.MULTILINE)
    assert written is not None
    shown = {part.partition("=")[0].strip() for part in written[1].replace("*,", "").split(", ")}
    assert shown == set(inspect.signature(getattr(holdfast, name)).parameters)


def test_every_option_of_using_and_of_the_app_is_in_the_api_page() -> None:
    text = read("api.md")
    options = [*inspect.signature(holdfast.TaskType.using).parameters, *inspect.signature(holdfast.Holdfast).parameters]
    assert {option for option in options if option != "self" and f"| `{option}` |" not in text} == set()


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{path.name}: {link}"


def test_constraints_are_exact_versions_without_addresses() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line)] == []


def test_make_help_lists_the_four_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "check", "bench"):
        assert re.search(rf"^{target}: .*## ", makefile, re.MULTILINE)


def test_the_picture_of_the_demo_shows_its_columns_and_asks_no_other_host() -> None:
    drawn = (DOCS / "demo.svg").read_text(encoding="utf-8")
    words = "".join(ET.fromstring(drawn).itertext())
    assert {name for _, name, _ in COLUMNS if name not in words} == set(), "run scripts/picture"
    assert "url(http" not in drawn
    assert len(drawn) < 60_000
