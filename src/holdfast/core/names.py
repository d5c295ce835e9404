"""What names, texts and sizes may be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from holdfast.errors import BadName, BadOption

#: Names, and request_ids and keys, as regular expressions that databases know too.
NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}"
VISIBLE_PATTERN = "[!-~]{1,200}"
_NAME = re.compile(NAME_PATTERN, re.ASCII)
_VISIBLE = re.compile(VISIBLE_PATTERN, re.ASCII)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean default?`, or nothing if no known name is like this one."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""


def check_queue(name: str) -> str:
    """The queue name, or a `BadName` that says what is allowed."""
    return _check("queue", name)


def check_type(name: str) -> str:
    """The task type's name, or a `BadName` that says what is allowed."""
    return _check("task type", name)


def check_schedule(name: str) -> str:
    """The schedule's name, or a `BadName` that says what is allowed."""
    return _check("schedule", name)


def check_document(name: str) -> str:
    """The kind or the name of a document, or a `BadName` that says what is allowed."""
    return _check("document", name)


def check_request_id(request_id: str) -> str:
    """The request_id, or a `BadName` that says what is allowed."""
    return _check_visible("request_id", request_id)


def check_key(key: str) -> str:
    """The key of a step that is done once, or a `BadName` that says what is allowed."""
    return _check_visible("key", key)


def _check_visible(kind: str, text: str) -> str:
    if not isinstance(text, str) or not _VISIBLE.fullmatch(text):
        raise BadName(f"{kind} {_shown(text)} is refused: use 1 to 200 visible ASCII characters, no spaces")
    return text


def _check(kind: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadName(
            f"{kind} name {_shown(name)} is refused: use 1 to 128 of A-Z a-z 0-9 _ . : - "
            "and begin with a letter, a digit or _"
        )
    return name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# -- text ----------------------------------------------------------------------------------------------------


#: Why a task was cancelled, discarded or failed.
MAX_REASON_CHARS: Final = 1_000
#: The name of an error's class, with its module.
MAX_ERROR_NAME_CHARS: Final = 500


def storable(text: str, max_chars: int) -> str:
    """At most `max_chars` characters of the text, without lone surrogates and NUL, which no UTF-8 column can keep.

    The result is the same text for every store: PostgreSQL refuses NUL, the others would keep it.
    """
    short = text if len(text) <= max_chars else text[: max_chars - 1] + "…"
    if "\0" in short:
        short = short.replace("\0", "\\x00")
    return short if short.isascii() else short.encode("utf-8", "backslashreplace").decode()


def is_storable(text: str, max_chars: int) -> bool:
    """Whether every store can keep it as it is."""
    return len(text) <= max_chars and storable(text, max_chars) == text


def reason_of(value: object) -> str:
    """A reason given by the caller, as text that can be stored, even if its `__str__` fails."""
    try:
        text = value if isinstance(value, str) else str(value)
    except BaseException as error:  # noqa: BLE001  (of a class of the user's)
        text = f"<str() failed: {type(error).__name__}>"
    return storable(text, MAX_REASON_CHARS)


# -- sizes ---------------------------------------------------------------------------------------------------


_UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.ASCII)


def size_bytes(text: str, what: str = "size") -> int:
    """The number of bytes of `400MB`, `1.5G` or `1048576`; a kilobyte has 1024. `what` names it in the error."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise BadOption(f'{what}: {text!r} is not an amount of memory; write "400MB", "1.5G" or a number of bytes')
    return round(float(found[1]) * _UNIT_BYTES[found[2]])


def format_bytes(size: int) -> str:
    """Three digits and a unit: `812 MB`, `1.5 GB`."""
    for unit, unit_bytes in (("GB", 2**30), ("MB", 2**20), ("kB", 2**10)):
        if size >= unit_bytes:
            number = size / unit_bytes
            return f"{number:.1f} {unit}" if number < 10 else f"{number:,.0f} {unit}"
    return f"{size} B"
