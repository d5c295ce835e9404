"""Payloads are JSON bytes with limits: encoded once, never executed, decoded into annotated types."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import msgspec

from holdfast.core.conversions import to_json
from holdfast.errors import BadArguments, PayloadTooDeep, PayloadTooLarge

MAX_BYTES = 256 * 1024
#: What an app may raise that to: databases refuse a value of about 1 GB, and a batch has several.
LARGEST_MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 64

#: Brackets as steps of 1 and -1 in signed bytes: a loop in Python over a long text would hold up all who wait.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))

#: How an encrypted payload, result or memo begins and ends; it is JSON still.
ENCRYPTED_START: Final = b'{"holdfast:encrypted":"'
ENCRYPTED_END: Final = b'"}'
#: The header that carries the signature of a task or of a schedule's call.
SIGNATURE_HEADER: Final = "holdfast-signature"

_encoder = msgspec.json.Encoder(enc_hook=to_json)


def encode(value: Any, what: str, max_bytes: int = MAX_BYTES) -> bytes:
    """The value as JSON bytes; `what` ("arguments of resize") names it in the errors."""
    try:
        data = _encoder.encode(value)
    except RecursionError:
        raise PayloadTooDeep(f"{what}: nested too deeply; the limit is {MAX_DEPTH} levels") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadArguments(f"{what}: cannot be written as JSON: {error}") from None
    check(data, what, max_bytes)
    return data


def check(data: bytes, what: str, max_bytes: int = MAX_BYTES) -> None:
    """Refuses JSON bytes that are over the limits of size and depth."""
    if len(data) > max_bytes:
        raise PayloadTooLarge(
            f"{what}: {len(data):,} bytes of JSON, the limit is {max_bytes:,}; "
            "keep large data elsewhere and pass a reference"
        )
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and (levels := depth(data)) > MAX_DEPTH:
        raise PayloadTooDeep(f"{what}: nested {levels} levels deep, the limit is {MAX_DEPTH}")


def depth(data: bytes) -> int:
    """How deep the arrays and objects of a JSON text are nested."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A quote beside a quote: an empty string, or nothing between two strings; without both, the others still alternate.
    marks = data.translate(_STEPS, _NO_MARKS).replace(b'""', b"")
    outside_of_strings = b"".join(marks.split(b'"')[::2])
    return max(accumulate(memoryview(outside_of_strings).cast("b")), default=0)


def is_encrypted(data: bytes | None) -> bool:
    """Whether these arguments, or this result, are encrypted."""
    return data is not None and data.startswith(ENCRYPTED_START) and data.endswith(ENCRYPTED_END)
