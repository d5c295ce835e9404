"""Finds words that we do not use, and keeps count of those that are left: `.venv/bin/python -m tests.docs.words`.

The lists are in `words.toml`. The command writes the counts of the tree as it is into that file, so that a moved file
keeps its words; it refuses if the sum of a table would grow.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click

from holdfast.cli.main import main as command_line
from tests.support import ROOT

LISTS: Final = Path(__file__).with_name("words.toml")
SOURCE: Final = ROOT / "src" / "holdfast"
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *(page for folder in ("docs", "examples", "deploy") for page in sorted((ROOT / folder).rglob("*.md"))),
]
#: Code that is read and copied, or run by people who work on Holdfast; its names are its own.
PROGRAMS: Final = [
    *(path for folder in ("examples", "chaos", "scripts", "docs") for path in sorted((ROOT / folder).rglob("*.py"))),
    *(ROOT / "scripts" / name for name in ("compare", "house", "picture", "share")),
]
_TEXTS: Final = frozenset({"Dockerfile", ".json", ".mjs", ".service", ".sh", ".yaml", ".yml"})
#: Files that are no Python: those of users are checked whole, since they see every text in them.
OTHERS: Final = [
    *(
        path
        for folder in ("deploy", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if {path.name, path.suffix} & _TEXTS
    ),
    *(path for suffix in ("sql", "lua") for path in sorted(SOURCE.rglob(f"*.{suffix}"))),
    ROOT / "Makefile",
    ROOT / "scripts" / "ensure-services",
]
#: Tables and columns of PostgreSQL, which docs/internals.md explains.
SCHEMA_WORDS: Final = frozenset({"lane", "lanes", "floor", "floors"})
#: The tables of `words.toml` that the command writes.
PROSE, NAMES = "prose", "names"
_MARK: Final = "\n[prose]\n"

_CONTENT: Final = tomllib.loads(LISTS.read_text(encoding="utf-8"))
#: The pattern of a word, and what to say instead.
BANNED: Final[Mapping[str, str]] = _CONTENT["banned"]
_EACH: Final = [(re.compile(key.replace(" ", r"\s+"), re.IGNORECASE), instead) for key, instead in BANNED.items()]
_ANY: Final = re.compile("|".join(rf"\b(?:{pattern.pattern})\b" for pattern, _ in _EACH), re.IGNORECASE)

#: Names: code in backticks, and options of commands.
_CODE: Final = re.compile(r"`[^`\n]*`|--[a-z-]+")
_GENERATED: Final = re.compile(r"<!-- generated: [a-z-]+ -->.*?<!-- end -->", re.DOTALL)
_FENCE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_COMMENT_IN_PAGE: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_TARGET: Final = re.compile(r"\]\([^)\s]+\)")
_WORDS_IN_NAME: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Finding(NamedTuple):
    """A word that we do not use, and where."""

    line: int
    word: str
    instead: str


def allowed(table: str) -> dict[str, int]:
    """How many findings each file may have; those that are not named may have none."""
    return dict(_CONTENT.get(table, {}))


def in_text(text: str, line: int = 1) -> Iterator[Finding]:
    """The findings in a text whose first line has this number."""
    bare = _CODE.sub(_blank, text)
    for found in _ANY.finditer(bare):
        word = found[0]
        instead = next(instead for pattern, instead in _EACH if pattern.fullmatch(word))
        yield Finding(line + bare.count("\n", 0, found.start()), word, instead)


def in_page(path: Path) -> list[Finding]:
    """The findings in a page: its prose, and the comments of its Python blocks.

    Generated parts are checked where their text is written: in the source, or in the help of a command.
    """
    text = path.read_text(encoding="utf-8")
    for pattern in (_GENERATED, _COMMENT_IN_PAGE, _TARGET):
        text = pattern.sub(_blank, text)
    return list(in_text(_FENCE.sub(_comments_of_fence, text)))


def in_source(path: Path) -> list[Finding]:
    """The findings in the docstrings, comments and messages of a module.

    A message is any text with a space in it; text without one is a name.
    """
    findings: list[Finding] = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                findings += in_text(token.string, token.start[0])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            findings += in_text(node.value, node.lineno)
    return sorted(findings)


def in_other(path: Path) -> list[Finding]:
    """The findings in a file that is no Python: in its comments if it is SQL or Lua, else in all of its text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in {".sql", ".lua"}:
        text = "\n".join(line.partition("--")[2] for line in text.split("\n"))
    findings = in_text(text)
    if path.is_relative_to(SOURCE / "stores" / "postgres"):
        return [found for found in findings if found.word.lower() not in SCHEMA_WORDS]
    return list(findings)


def in_prose() -> dict[Path, list[Finding]]:
    """The findings in each file that is no page."""
    return {path: in_source(path) for path in [*sources(), *PROGRAMS]} | {path: in_other(path) for path in OTHERS}


def in_help() -> dict[str, list[Finding]]:
    """The findings in each `--help`."""
    return {path: list(in_text(text)) for path, text in _helps("holdfast", command_line, None)}


def in_names(path: Path, root: Path = SOURCE) -> list[Finding]:
    """The words of our own in the public names of a module that the glossary does not explain."""
    names = [(1, part) for part in path.relative_to(root).with_suffix("").parts if not part.startswith("_")]
    names += _public_names(ast.parse(path.read_text(encoding="utf-8")))
    return [Finding(line, name, f"another word than {word!r}") for line, name in names for word in coined_in(name)]


def coined_in(name: str) -> list[str]:
    """The words of our own in a name that the glossary does not explain."""
    coined = set(_CONTENT["coined"]["words"]) - glossary()
    return [word for word in _words(name) if word in coined]


def glossary() -> set[str]:
    """The words that the glossary explains."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {word for term in terms for word in re.findall(r"[a-z]+", term.lower())}


def sources() -> list[Path]:
    """Every module."""
    return sorted(SOURCE.rglob("*.py"))


def counted() -> dict[str, dict[str, int]]:
    """The number of findings by table and file, without files that have none."""
    prose = {path: len(findings) for path, findings in in_prose().items()}
    names = {path: len(in_names(path)) for path in sources()}
    return {PROSE: _by_name(prose), NAMES: _by_name(names)}


def main() -> None:
    """Writes the counts of the tree as it is, unless a sum would grow."""
    tables = counted()
    for table, counts in tables.items():
        before, now = sum(allowed(table).values()), sum(counts.values())
        if table in _CONTENT and now > before:
            sys.exit(f"[{table}] would grow from {before} to {now}: use the words of words.toml instead")
        print(f"{table}: {before} -> {now}")
    text = LISTS.read_text(encoding="utf-8")
    end = text.find(_MARK)
    kept = text if end < 0 else text[:end]
    parts = [_table(table, counts) for table, counts in tables.items()]
    LISTS.write_text("\n".join([kept.rstrip("\n") + "\n", *parts]), encoding="utf-8")


def _table(name: str, counts: Mapping[str, int]) -> str:
    return "\n".join([f"[{name}]", *(f'"{path}" = {count}' for path, count in counts.items()), ""])


def _by_name(counts: Mapping[Path, int]) -> dict[str, int]:
    return {str(path.relative_to(ROOT)): count for path, count in sorted(counts.items()) if count}


def _helps(path: str, command: click.Command, above: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, above, info_name=path.rpartition(" ")[2])
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, f"{path} {name} is listed and cannot be loaded"
            yield from _helps(f"{path} {name}", below, context)


def _public_names(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                if not name.startswith("_"):
                    yield node.lineno, name
                    yield from _public_names(node)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_"):
                    yield node.lineno, name
            case ast.Assign(targets=targets):
                yield from _constants(targets)
            case ast.AnnAssign(target=target):
                yield from _constants([target])
            case _:
                pass


def _constants(targets: list[ast.expr]) -> Iterator[tuple[int, str]]:
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        for part in parts:
            if isinstance(part, ast.Name) and not part.id.startswith("_") and part.id.isupper():
                yield part.lineno, part.id


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS_IN_NAME.findall(name)]


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _comments_of_fence(found: re.Match[str]) -> str:
    if found[1] not in ("python", "py"):
        return _blank(found)
    return "\n".join(["", *(line.partition("#")[2] for line in found[2].split("\n"))])


if __name__ == "__main__":
    main()
