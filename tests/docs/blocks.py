"""Reads the marked code blocks of a page.

A comment in front of a block says what it is:

- `<!-- file: NAME -->` writes it; `<!-- run -->` runs it with Python, `<!-- shell -->` with bash.
- `<!-- shell: background -->` keeps running to the end of the page, `<!-- shell: prints TEXT -->` must print it,
  `<!-- shell: eventually TEXT -->` is repeated until it does.
- `<!-- console -->` runs its lines that begin with `$` at a terminal, and the others are what they print;
  `<!-- console: eventually -->` is repeated until they do.
- `<!-- log -->` is what the last background command prints, sooner or later.

In the output of the last two, `...` stands for any lines, and what is different each time is compared by its form:
ids, times, durations, sizes, process numbers, words that are cut. The folder is called `/home/you/project`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = "/home/you/project"
_BLOCK = re.compile(
    r"<!-- (?P<kind>file|run|shell|console|log)(?:: (?P<detail>[^\n]+?))? -->\n```\w+\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
#: What is different each time, and the name of its form. The order matters: a time has a duration in it.
_FORMS = [
    (re.compile(pattern), name)
    for pattern, name in [
        (r"[\w.-]+:\d+-[0-9a-f]+", "<worker>"),
        (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)?", "<time>"),
        (r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,32}(?:…|\b)", "<id>"),
        (r"\b\d+(?:\.\d+)?(?:ms|[smhdw])(?:\d+(?:ms|[smhd]))*\b", "<duration>"),
        (r"\b\d+(?:[.,]\d+)* ?(?:bytes|[kKMG]i?B)\b", "<size>"),
        (r"\bpid \d+", "pid <number>"),
        (r"[^\s…]*…", "…"),
        (r"─+", "─"),
        (r"[ \t]+", " "),
    ]
]
#: What a worker logs of a failed attempt, in the form that `lines` gives it.
_FAILURE = re.compile(
    r"holdfast\.task: (?P<type>\S+)\[<id>\] "
    r"(?:attempt \S+ (?:failed|timed out|lost)|dead-lettered after [^:]*|failed for good after [^:]*|not started)"
    r": (?P<error>.*?)(?: \((?:retry in|ready to) [^()]*\))?$"
)


class Block(NamedTuple):
    """One marked block."""

    kind: str
    detail: str
    code: str

    def steps(self) -> list[tuple[str, list[str]]]:
        """The commands of a console block, each with the lines that it prints."""
        steps: list[tuple[str, list[str]]] = []
        for line in self.code.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            elif steps and not steps[-1][1] and steps[-1][0].endswith("\\"):
                steps[-1] = (f"{steps[-1][0]}\n{line}", [])
            else:
                steps[-1][1].append(line)
        return steps


def blocks(page: Path) -> list[Block]:
    """The marked blocks of the page, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(found["kind"], found["detail"] or "", found["code"]) for found in _BLOCK.finditer(text)]


def lines(text: str, folder: Path | None = None) -> list[str]:
    """The lines of an output by their form, without empty ones."""
    if folder is not None:
        text = text.replace(str(folder), FOLDER)
    for pattern, name in _FORMS:
        text = pattern.sub(name, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def failures(text: str, folder: Path | None = None) -> set[tuple[str, str]]:
    """Type and error of each failed attempt and each dead letter that a worker has logged there."""
    return {(found["type"], found["error"]) for line in lines(text, folder) if (found := _FAILURE.search(line))}


def shows(printed: Sequence[str], expected: Sequence[str]) -> bool:
    """Whether these lines are what a page expects, `...` being any lines."""
    pattern = "".join("(?:.*\n)*?" if line == "..." else f"{re.escape(line)}\n" for line in expected)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
