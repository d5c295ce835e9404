"""Printing: tables on a terminal, tab-separated text into a pipe, one JSON document with `--json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from holdfast.admin.text import printable

_WIDEST = 10_000


def at_terminal() -> bool:
    """Whether a person reads what is printed."""
    return sys.stdout.isatty()


def document(value: Any) -> None:
    """Prints one JSON document, in ASCII so that no text in it can drive a terminal."""
    click.echo(json.dumps(msgspec.to_builtins(value), indent=2))


def line(text: str) -> None:
    """Prints one line."""
    click.echo(printable(text))


def chatter(text: str) -> None:
    """Says something that is not the answer: on stderr."""
    click.echo(printable(text), err=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Prints a table; columns whose name begins with `#` hold numbers. `empty` is said when there are no rows."""
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not at_terminal():
        click.echo("\t".join(column.lstrip("#") for column in columns))
        for row in texts:
            click.echo("\t".join(row))
    elif texts:
        _rich_table(columns, texts)
    else:
        click.echo(empty)


def details(pairs: Sequence[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line; pairs without a value are left out."""
    shown = [(name, printable(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {value}" if at_terminal() else f"{name}\t{value}")


def block(title: str, text: str) -> None:
    """Prints a text of several lines under a title, indented."""
    click.echo(f"{title}:")
    for text_line in text.rstrip().splitlines():
        click.echo(f"    {printable(text_line)}")


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, if that is a terminal; it is handed how much is done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(label, total=total)
        yield lambda done: progress.update(bar, completed=done)


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for column in columns:
        shown.add_column(column.lstrip("#"), no_wrap=True, justify="right" if column.startswith("#") else "left")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    console = Console()
    # In a narrow terminal long lines are better than columns that are not there.
    console.width = max(console.width, Console(width=_WIDEST).measure(shown).maximum)
    console.print(shown)
