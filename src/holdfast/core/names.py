"""What a queue, a task type, a schedule, a request_id and a key may be called."""

from __future__ import annotations

import re

from holdfast.errors import BadName

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
_VISIBLE = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)


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
