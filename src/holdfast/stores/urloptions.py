"""How the options of a store's URL are read; a `ValueError` says what to write instead."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.durations import duration_ms
from holdfast.errors import BadDuration


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
