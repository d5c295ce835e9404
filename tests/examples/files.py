"""The files of examples/ and deploy/, and the commands that stand in them."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import click

from holdfast.cli.main import main
from tests.support import ROOT

IMAGES = ROOT / "examples" / "images"
KUBERNETES = ROOT / "deploy" / "kubernetes"
_yaml = importlib.import_module("yaml")  # not with `import`: it comes without types


def documents(path: Path) -> list[Any]:
    """The YAML documents of a file."""
    return [document for document in _yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def compose() -> Any:
    """The compose file of the image service."""
    (document,) = documents(IMAGES / "docker-compose.yml")
    return document


def check_page(path: Path) -> int:
    """How many calls of `holdfast` the code blocks of a page have; fails if one of them would be refused."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    calls = re.findall(r"(?<![\w'\"/-])holdfast (?:[a-z].*?)(?=\)\"| &|  +#|$)", blocks, re.MULTILINE)
    for call in calls:
        check_holdfast_call(shlex.split(call))
    return len(calls)


def check_holdfast_call(words: list[str]) -> dict[str, Any]:
    """The options of a `holdfast …` command line by name; fails if the command would refuse them."""
    assert words[0] == "holdfast"
    context = click.Context(main, info_name="holdfast")
    command: click.Command = main
    rest = words[1:]
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, f"there is no {name} in {words}"
        command = found
        context = click.Context(command, info_name=name, parent=context)
    command.parse_args(context, rest)
    return context.params
