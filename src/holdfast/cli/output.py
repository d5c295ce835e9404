"""Printing: tables on a terminal, tab-separated text into a pipe, one JSON document with `--json`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import click
import msgspec

from holdfast.admin.inspect import printable
from holdfast.cli.tables import Column, coloured, column, rendered, terminal_width

#: Lines that are held back until all of them can be shown at once: see `held_back`.
_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def at_terminal() -> bool:
    """Whether a person reads what is printed."""
    return sys.stdout.isatty()


def document(value: Any) -> None:
    """Prints one JSON document, in ASCII so that no text in it can drive a terminal."""
    _print(json.dumps(msgspec.to_builtins(value, enc_hook=_decoded), indent=2))


def _decoded(value: object) -> object:
    """JSON inside of a view, as a value."""
    if isinstance(value, msgspec.Raw):
        from holdfast.admin.inspect import json_value

        return json_value(bytes(value))
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


@contextmanager
def held_back() -> Iterator[list[str]]:
    """Gathers what the block prints, a line each, instead of printing it."""
    lines: list[str] = []
    token = _held.set(lines)
    try:
        yield lines
    finally:
        _held.reset(token)


def _print(text: str) -> None:
    held = _held.get()
    if held is None:
        # A terminal wants the colours that were chosen; elsewhere there are none.
        click.echo(text, color=at_terminal() or None)
    else:
        held += text.split("\n")


def line(text: str) -> None:
    """Prints one line."""
    _print(printable(text))


def chatter(text: str) -> None:
    """Says something that is not the answer: on stderr."""
    if _held.get() is not None:
        _print(printable(text))
    else:
        click.echo(printable(text), err=True)


def table(columns: Sequence[str | Column], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Prints a table that fits the terminal, or all of it as tab-separated text; `empty` if there are no rows.

    A column is a `Column`, or the name of one that is always shown; names that begin with `#` are of numbers.
    """
    chosen = [column(each) for each in columns]
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not at_terminal():
        _print("\t".join(each.name for each in chosen))
        for row in texts:
            _print("\t".join(row))
    elif texts:
        for each in rendered(chosen, texts, terminal_width()):
            _print(each)
    elif empty:
        _print(empty)


def details(pairs: Sequence[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line; pairs without a value are left out."""
    shown = [(name, printable(str(value))) for name, value in pairs if value not in (None, "")]
    if not at_terminal():
        for name, value in shown:
            _print(f"{name}\t{value}")
        return
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        # Never inside of a word: a word that is wider than the terminal is left to it.
        lines = textwrap.wrap(value, terminal_width() - width - 2, break_long_words=False, break_on_hyphens=False)
        for number, part in enumerate(lines):
            text = coloured(value, part) if name in ("state", "status") else part
            _print(f"{'' if number else name:<{width}}  {text}")


def block(title: str, text: str) -> None:
    """Prints a text of several lines under a title, indented."""
    _print(f"{title}:")
    for text_line in text.rstrip().splitlines():
        _print(f"    {printable(text_line)}")


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
