"""JSON inside of JSON, byte for byte: arguments, results and progress are never decoded on their way."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

import msgspec

NULL: Final = msgspec.Raw(b"null")
_SPACE: Final = b" \t\r\n"
_skip = msgspec.json.Decoder(msgspec.Raw).decode


def raw_json(data: bytes | None) -> msgspec.Raw | None:
    """The bytes as they may stand inside of a JSON text, or None if they cannot."""
    if not data or data[0] in _SPACE or data[-1] in _SPACE:
        return None
    try:
        if not data.isascii():
            str(data, "utf-8")
        _skip(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.Raw(data)


def base64_text(data: bytes) -> str:
    """The bytes as text, for those that are no JSON."""
    return b64encode(data).decode()
