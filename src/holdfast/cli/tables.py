"""Tables that fit the terminal: ids are shortened, long texts cut, and unimportant columns left out.

In this order, until the table is as narrow as the terminal:

1. ids are shortened to as many digits as tell the rows apart (every command takes the beginning of an id),
2. `long` columns are cut down to `_LONG_CELLS`,
3. columns are left out: those without a value, then those of the highest rank first,
4. what is left is cut, the widest column first.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from typing import Final, Literal, NamedTuple

_GAP: Final = "  "
#: A long text is cut down to this many cells before a column is left out for it.
_LONG_CELLS: Final = 40
#: No column is cut below this many cells.
_FEWEST_CELLS: Final = 8
#: Digits of a task_id that are shown at least: its time, to the millisecond.
SHORT_ID: Final = 12
#: The narrowest terminal that is tried for; below, lines are longer than the terminal.
_NARROWEST: Final = 40

_RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, _DIM, _BOLD = "31", "32", "33", "34", "35", "36", "2", "1"
#: Words that have a colour, in the columns of `_COLOURED`.
_COLOURS: Final = {
    **dict.fromkeys(("succeeded", "ok", "running", "INFO"), _GREEN),
    **dict.fromkeys(("ready", "note"), _CYAN),
    "claimed": _BLUE,
    **dict.fromkeys(("retry_pending", "draining", "paused", "released", "snoozed", "waiting", "WARNING"), _YELLOW),
    **dict.fromkeys(("dead_lettered", "failed", "timed_out", "gone", "lease_expired", "worker_lost"), _RED),
    **dict.fromkeys(("PROBLEM", "ERROR", "CRITICAL"), _RED),
    "cancelled": _MAGENTA,
    **dict.fromkeys(("scheduled", "blocked", "DEBUG"), _DIM),
}
_COLOURED: Final = frozenset({"", "state", "status", "outcome", "level"})


class Column(NamedTuple):
    """A column: what it holds, and how soon it is left out in a narrow terminal."""

    name: str
    #: 0 is always shown; of the others, the highest go first.
    rank: int = 0
    #: `long` is cut first, `wrapped` is continued in the next line.
    kind: Literal["text", "number", "id", "long", "wrapped"] = "text"


def column(given: str | Column) -> Column:
    """The column itself, or one that is always shown; a name that begins with `#` is one of numbers."""
    if isinstance(given, Column):
        return given
    return Column(given.lstrip("#"), kind="number" if given.startswith("#") else "text")


def terminal_width() -> int:
    """Columns of the terminal."""
    return max(shutil.get_terminal_size().columns, _NARROWEST)


def has_colours() -> bool:
    """Whether a terminal may be sent colours: NO_COLOR and TERM=dumb turn them off."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(word: str, padded: str | None = None) -> str:
    """The text in the colour of the word, if it has one."""
    text, colour = word if padded is None else padded, _COLOURS.get(word)
    return _painted(text, colour) if colour and has_colours() else text


def _painted(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def rendered(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines of the table, each at most `width` cells."""
    columns, rows = _shortened(columns, rows, width)
    columns, rows = _narrowed(columns, rows, width)
    widths = _cut(columns, rows, width)
    header = [_aligned(each, each.name, cells) for each, cells in zip(columns, widths, strict=True)]
    line = _GAP.join(header).rstrip()
    lines = [_painted(line, _BOLD) if has_colours() else line, "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))]
    for row in rows:
        lines += _row_lines(columns, row, widths)
    return lines


def _shortened(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    if _total(_natural(columns, rows)) <= width:
        return columns, rows
    shorter = [list(row) for row in rows]
    for place, each in enumerate(columns):
        if each.kind == "id":
            digits = shortest([row[place] for row in rows])
            for row in shorter:
                row[place] = row[place][:digits]
    return columns, shorter


def shortest(ids: Iterable[str]) -> int:
    """How many characters tell all these ids apart, `SHORT_ID` at least."""
    ordered = sorted(set(ids))
    same = (
        sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(*pair, strict=False))) for pair in pairwise(ordered)
    )
    return max(SHORT_ID, 1 + max(same, default=0))


def _narrowed(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Without the columns that there is no place for."""
    left = list(range(len(columns)))
    natural = _natural(columns, rows)
    least = [
        min(cells, max(_LONG_CELLS, _cells(each.name))) if each.kind in ("long", "wrapped") else cells
        for each, cells in zip(columns, natural, strict=True)
    ]
    empty = {n for n in left if not any(row[n] for row in rows)}
    while _total([least[n] for n in left]) > width and any(columns[n].rank for n in left):
        left.remove(max(left, key=lambda n: (columns[n].rank > 0 and n in empty, columns[n].rank, n)))
    return [columns[n] for n in left], [[row[n] for n in left] for row in rows]


def _cut(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The width of each column, so that all of them fit: first the long ones, then the widest one again and again."""
    widths = _natural(columns, rows)
    flexible = [n for n, each in enumerate(columns) if each.kind in ("long", "wrapped")]
    texts = [n for n, each in enumerate(columns) if each.kind == "text"]
    for among, fewest in ((flexible, _LONG_CELLS), (texts, _LONG_CELLS), (flexible + texts, _FEWEST_CELLS)):
        while (over := _total(widths) - width) > 0:
            widest = max(among, key=lambda n: widths[n], default=None)
            if widest is None or widths[widest] <= fewest:
                break
            second = max((widths[n] for n in among if n != widest), default=0)
            widths[widest] -= max(1, min(over, widths[widest] - max(fewest, min(second, widths[widest] - 1))))
    return widths


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(_cells(each.name), *(_cells(row[n]) for row in rows)) for n, each in enumerate(columns)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _row_lines(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> list[str]:
    parts = [
        _wrapped(text, cells) if each.kind == "wrapped" else [_clipped(text, cells)]
        for each, text, cells in zip(columns, row, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, parts))):
        line = ""
        for each, part, cells in zip(columns, parts, widths, strict=True):
            text = part[number] if number < len(part) else ""
            padded = _aligned(each, text, cells)
            line += (coloured(text, padded) if each.name in _COLOURED else padded) + _GAP
        lines.append(line.rstrip())
    return lines


def _aligned(each: Column, text: str, cells: int) -> str:
    padding = " " * (cells - _cells(text))
    return padding + text if each.kind == "number" else text + padding


def _wrapped(text: str, cells: int) -> list[str]:
    return textwrap.wrap(text, cells, break_on_hyphens=False) or [""]


def _clipped(text: str, cells: int) -> str:
    if _cells(text) <= cells:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, cells - 1).rstrip() + "…"


def _cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
