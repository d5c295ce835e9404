"""Comparisons whose failure says what was promised; they work without a test runner and under `python -O`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def expect(what: str, actual: object, wanted: object) -> None:
    """Fails unless both are equal; `what` names the promise."""
    if actual != wanted:
        raise AssertionError(f"{what}: expected {_shown(wanted)}, got {_shown(actual)}")


def expect_true(what: str, condition: object) -> None:
    """Fails unless the condition holds; `what` states it."""
    if not condition:
        raise AssertionError(what)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:600]}… ({len(text)} characters)"


def only(what: str, items: Sequence[Item]) -> Item:
    """The one item that there must be."""
    if len(items) != 1:
        raise AssertionError(f"{what}: expected exactly one, got {_shown(items)}")
    return items[0]
