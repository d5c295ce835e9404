"""The arguments of a task, as given on a command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.payload import MAX_BYTES
from holdfast.errors import BadArguments

#: Far more than any payload may have, far less than what hurts.
_READ_LIMIT = 64 * MAX_BYTES


def read_arguments(given: str) -> Any:
    """The JSON value given as text, as `@file`, or as `-` for stdin; `BadArguments` if it is none."""
    text = _read(given)
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise BadArguments("--args: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadArguments(f"--args is not JSON: {error}; write it as '{{\"name\": 1}}'") from None


def as_object(value: Any) -> dict[str, Any]:
    """The value, if it is a JSON object; `BadArguments` otherwise."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        raise BadArguments("--args: a list needs --app to know the names; write an object, as '{\"name\": 1}'")
    raise BadArguments("--args is not a JSON object; write the arguments by name, as '{\"name\": 1}'")


def _read(given: str) -> bytes:
    if given == "-":
        data = sys.stdin.buffer.read(_READ_LIMIT + 1)
    elif given.startswith("@"):
        try:
            with Path(given[1:]).open("rb") as file:
                data = file.read(_READ_LIMIT + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadArguments(f"--args: cannot read {given[1:]}: {reason}") from None
    else:
        data = given.encode(errors="surrogateescape")
    if len(data) > _READ_LIMIT:
        raise BadArguments(f"--args: more than {_READ_LIMIT:,} bytes; keep large data elsewhere and pass a reference")
    return data
