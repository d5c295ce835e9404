"""Amounts of memory as people write them, bytes as we keep them."""

from __future__ import annotations

import re

from holdfast.errors import BadOption

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
