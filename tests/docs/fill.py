"""Writes what the commands of a page print into the page: `.venv/bin/python -m tests.docs.fill docs/how-to/PAGE.md`.

Follows the page as the tests do, and replaces the output in each `console` block whose output is no longer what the
command prints. Output with `...` in it is left as it is, and so are blocks marked `eventually`, and logs.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.docs.blocks import FOLDER, Block, blocks, lines, shows
from tests.docs.test_pages_run import at_terminal, follow


def filled(block: Block, folder: Path) -> str:
    """The code of a console block with what its commands print now."""
    text: list[str] = []
    for command, expected in block.steps():
        printed = at_terminal(command, folder).replace(str(folder), FOLDER)
        keep = "..." in expected or shows(lines(printed), lines("\n".join(expected)))
        shown = expected if keep else [line.rstrip() for line in printed.splitlines()]
        text += [f"$ {command}", *shown]
    return "\n".join(text) + "\n"


def fill(page: Path) -> None:
    """Rewrites one page."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for block in blocks(page):
            if block.kind == "console" and not block.detail:
                text = text.replace(block.code, filled(block, Path(folder)), 1)
            else:
                follow(block, Path(folder), stack)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        fill(Path(name))
