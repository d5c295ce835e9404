"""Every option that a page names exists: those behind a command belong to it, the others to some command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.docs.test_docs_are_complete import COMMANDS, DOCS
from tests.support import ROOT

PAGES = [
    *(path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md"),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
#: A long option, with what may stand in front of it.
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
#: A command line ends where the next one begins, and before a comment.
_END = re.compile(r"[|;&`#\n]|\bholdfast ")
#: Options of other programs that the pages name alone, without their program.
ELSEWHERE = {"--workers": "uvicorn and gunicorn", "--backend": "manage.py holdfast_worker"}


def of(command: click.Command) -> set[str]:
    names = (name for each in command.params for name in (*each.opts, *each.secondary_opts))
    return {"--help", "--version", *names}


KNOWN = set.union(*map(of, COMMANDS.values()))


def longest_command(words: list[str]) -> str | None:
    """The command that these words begin with."""
    paths = (" ".join(words[:count]) for count in (3, 2))
    return next((path for path in paths if path in COMMANDS), None)


def wrong_options(text: str) -> Iterator[str]:
    for code in _CODE.findall(text.replace("\\\n", " ")):
        for given in re.findall(r"BENCH_OPTIONS='?\"?((?:--[a-z-]+ ?)+)", code):
            yield from (f"bench {name}" for name in given.split() if name not in of(COMMANDS["holdfast bench"]))
        for begin in re.finditer(r"\bholdfast (?=[a-z])", code):
            line = code[begin.start() : begin.end()] + _END.split(code[begin.end() :], maxsplit=1)[0]
            path = longest_command(line.split())
            if path is not None:
                yield from (f"{path} {name}" for name in _OPTION.findall(line) if name not in of(COMMANDS[path]))
        if re.fullmatch(r"`--[a-z-]+(?: [A-Z0-9=,a-z]+)?`", code):
            yield from (name for name in _OPTION.findall(code) if name not in KNOWN | ELSEWHERE.keys())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(Path(page).relative_to(ROOT)))
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    assert list(wrong_options(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`BENCH_OPTIONS=--sever`", ["bench --sever"]),
        ("`make bench BENCH_OPTIONS='--server --nope'`", ["bench --nope"]),
        ("```sh\nholdfast tasks ls --sate ready\n```", ["holdfast tasks ls --sate"]),
        ("`holdfast worker app --url x | other --thing`", []),
        ("Add `--nowhere`, or `--url URL`.", ["--nowhere"]),
    ],
)
def test_a_wrong_option_is_found(text: str, wrong: list[str]) -> None:
    assert list(wrong_options(text)) == wrong
