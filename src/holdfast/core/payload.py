"""Payloads are JSON bytes with limits: encoded once, never executed, decoded into annotated types."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import BadArguments, PayloadTooDeep, PayloadTooLarge

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64

_encoder = msgspec.json.Encoder()


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
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and depth(data) > MAX_DEPTH:
        raise PayloadTooDeep(f"{what}: nested {depth(data)} levels deep, the limit is {MAX_DEPTH}")


def depth(data: bytes) -> int:
    """How deep the arrays and objects of a JSON text are nested."""
    deepest = level = 0
    in_string = escaped = False
    for byte in data:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:  # \
                escaped = True
            elif byte == 0x22:  # "
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in (0x5B, 0x7B):  # [ {
            level += 1
            deepest = max(deepest, level)
        elif byte in (0x5D, 0x7D):  # ] }
            level -= 1
    return deepest
