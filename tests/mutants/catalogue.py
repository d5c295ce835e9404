"""The planted bugs: small replacements in the text of one source file, kept in the TOML files of this folder.

A file has the bugs of one package: the folder whose files are searched, the tests that are nearest, the mutants. The
text of a mutant must occur exactly once in the files of its folder, wherever that is, so that a file can be renamed or
divided without a change here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support import ROOT

HERE: Final = Path(__file__).parent
#: What a bug can be planted in.
SUFFIXES: Final = frozenset({".py", ".sql", ".lua"})


class BadMutant(Exception):
    """An entry that does not fit the source any more."""


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    package: str
    id: str
    about: str
    folders: tuple[str, ...]
    find: str
    replace: str
    #: What pytest is given: the tests that are expected to fail.
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.package}-{self.id}"

    def place(self, root: Path = ROOT) -> Path:
        """The one file that has the text; `BadMutant` if there is none, or more than one."""
        found = [(path, count) for path in _files(root, self.folders) if (count := _text(path).count(self.find))]
        if [count for _, count in found] != [1]:
            places = ", ".join(f"{count} times in {path.relative_to(root)}" for path, count in found) or "nowhere"
            folders = " and ".join(self.folders)
            raise BadMutant(f"{self}: its text must occur once in {folders} and occurs {places}: {self.find!r}")
        return found[0][0]

    def mutated(self, text: str) -> str:
        """The text of its file with the bug in it."""
        return text.replace(self.find, self.replace)


def mutants() -> list[Mutant]:
    """All of them, in the order of their files."""
    return [mutant for path in sorted(HERE.glob("*.toml")) for mutant in _read(path)]


def _read(path: Path) -> Iterator[Mutant]:
    data = tomllib.loads(path.read_text("utf-8"))
    usual = {"folder": data["folder"], "tests": data["tests"]}
    for entry in data["mutant"]:
        yield _mutant(path.stem, {**usual, **entry})


def _mutant(package: str, entry: dict[str, Any]) -> Mutant:
    unknown = entry.keys() - {"id", "about", "folder", "find", "replace", "tests"}
    if unknown:
        raise BadMutant(f"{package}-{entry.get('id')}: {', '.join(unknown)}: there is no such field")
    folder = entry["folder"]
    folders = (folder,) if isinstance(folder, str) else tuple(folder)
    return Mutant(package, entry["id"], entry["about"], folders, entry["find"], entry["replace"], tuple(entry["tests"]))


@cache
def _files(root: Path, folders: tuple[str, ...]) -> tuple[Path, ...]:
    found: list[Path] = []
    for folder in folders:
        place = root / folder
        found += [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.suffix in SUFFIXES)
    return tuple(found)


@cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")
