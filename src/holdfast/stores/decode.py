"""Decodes what every store keeps of a task as JSON (policy, headers, errors of attempts), and numbers in cursors.

A record may have been written by another version of Holdfast, or by hand. One that cannot be decoded costs its own task
only: that task is shown with defaults, and becomes a dead letter at its next claim.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.core.task import Failure
from holdfast.errors import BadOption

#: What decoding one record may raise: msgspec refuses what is nested about 1,000 levels deep with a RecursionError.
Unreadable: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_policy_decoder: Final = msgspec.json.Decoder(RunPolicy)
_headers_decoder: Final = msgspec.json.Decoder(dict[str, str])
_failure_decoder: Final = msgspec.json.Decoder(Failure)
#: All numbers of up to this many digits fit into 64 bits.
_CURSOR_DIGITS: Final = 18


def policy_of(text: str | bytes | None) -> RunPolicy:
    """The policy of a claimed task; raises one of `Unreadable` if it is none."""
    return _policy_decoder.decode(text) if text else DEFAULT_POLICY


def headers_of(text: str | bytes | None) -> dict[str, str]:
    """The headers of a claimed task; raises one of `Unreadable` if they are none."""
    return _headers_decoder.decode(text) if text else {}


def shown_policy(text: str | bytes | None) -> RunPolicy:
    """The policy, or the default for one that cannot be decoded."""
    try:
        return policy_of(text)
    except Unreadable:
        return DEFAULT_POLICY


def shown_headers(text: str | bytes | None) -> dict[str, str]:
    """The headers, or none if they cannot be decoded."""
    try:
        return headers_of(text)
    except Unreadable:
        return {}


def failure_of(text: str | bytes) -> Failure:
    """The error of an attempt, or one that says that it cannot be decoded."""
    try:
        return _failure_decoder.decode(text)
    except Unreadable as error:
        return Failure("UnreadableError", f"the error was stored in a form that cannot be read: {error}")


def bury_unreadable(task_id: str, token: str, error: Exception) -> Change:
    """The change that makes a claimed task that this version of Holdfast cannot decode a dead letter."""
    failure = Failure("UnreadableTask", f"its policy or headers cannot be read: {error}")
    return lifecycle.fail(task_id, token, failure, attempt=1, policy=DEFAULT_POLICY, retryable=False, random_unit=0.0)


def number_in(cursor: str) -> int:
    """The number that a cursor is; `BadOption` if it is none."""
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _CURSOR_DIGITS):
        raise bad_cursor(cursor)
    return int(cursor)


def bad_cursor(cursor: str) -> BadOption:
    """The error for a cursor that no page ended with."""
    return BadOption(f"invalid cursor {cursor[:40]!r}; pass the one returned with the previous page")
