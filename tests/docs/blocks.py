"""Reads the marked code blocks of a page.

A comment in front of a block says what it is: `<!-- file: NAME -->` writes it, `<!-- run -->` runs it with Python,
`<!-- shell -->` with bash; `<!-- shell: background -->` keeps running to the end of the page, `<!-- shell: prints
TEXT -->` must print it, `<!-- shell: eventually TEXT -->` is repeated until it does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(
    r"<!-- (?P<kind>file|run|shell)(?:: (?P<detail>[^\n]+?))? -->\n```\w+\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """One marked block."""

    kind: str
    detail: str
    code: str


def blocks(page: Path) -> list[Block]:
    """The marked blocks of the page, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(found["kind"], found["detail"] or "", found["code"]) for found in _BLOCK.finditer(text)]
