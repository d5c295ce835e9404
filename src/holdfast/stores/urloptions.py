"""How the options of a store's URL are read; a `ValueError` says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from holdfast.core.durations import duration_ms
from holdfast.errors import BadDuration

#: The options of a kind of URL: the field that each one sets, and how its text is read.
Readers = Mapping[str, tuple[str, Callable[[str, str], Any]]]


def read_options(query: str, readers: Readers) -> dict[str, Any]:
    """The fields that the options behind the question mark set; each of them once, and none that is not known."""
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in readers:
            raise ValueError(f"unknown option {name!r}; there are {', '.join(readers)}")
        field_name, read = readers[name]
        if field_name in found:
            raise ValueError(f"option {name!r} is given twice")
        found[field_name] = read(name, text)
    return found


def known_host(text: str) -> str:
    """A name or an address that can be asked for: what the encoding of names refuses would not even be looked up."""
    try:
        text.encode("idna")
    except UnicodeError:
        # Not shown: it may be a part of a password with an unescaped slash.
        raise ValueError("that host cannot be: every part of a name has 1 to 63 characters") from None
    return text


def file(name: str, text: str) -> str:
    """The path of a file that is there."""
    if not Path(text).is_file():
        raise ValueError(f"{name}={text}: there is no such file")
    return text


def durability(name: str, text: str) -> str:
    """A durability level."""
    if text not in {"local", "replicated", "strict"}:
        raise ValueError(f"{name}={text}: write local, replicated or strict")
    return text


def deadline(name: str, text: str) -> int:
    """A duration in milliseconds."""
    try:
        milliseconds = duration_ms(text)
    except BadDuration:
        milliseconds = 0
    if not 100 <= milliseconds <= 600_000:
        raise ValueError(f"{name}={text}: write a duration from 100ms to 10m, such as 5s")
    return milliseconds


def number(lowest: int, highest: int) -> Callable[[str, str], int]:
    """Reads a whole number within these bounds."""

    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and lowest <= int(text) <= highest):
            raise ValueError(f"{name}={text}: write a whole number from {lowest} to {highest}")
        return int(text)

    return read
