"""Durations as people write them, milliseconds as we keep them."""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.errors import BadDuration

#: A timedelta, a number of seconds, or text such as "250ms", "30s", "10m", "1h30m", "7d".
Duration = timedelta | int | float | str

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.ASCII)
#: Far longer than any real duration; the search for parts takes the square of the length.
_LONGEST_TEXT = 100
#: A century: anything longer is a mistake, and sums with it still fit a 53-bit integer.
LONGEST_MS = 100 * 365 * 86_400_000


def duration_ms(value: Duration, what: str = "duration") -> int:
    """The duration in whole milliseconds; `what` names it in the error."""
    if isinstance(value, str):
        milliseconds = _parse(value, what)
    elif isinstance(value, timedelta):
        milliseconds = value.total_seconds() * 1000
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        milliseconds = value * 1000
    else:
        raise BadDuration(f'{what}: {value!r} is not a duration; write 90, 1.5, "10m" or a timedelta')
    if not 0 <= milliseconds <= LONGEST_MS:  # also catches NaN
        raise BadDuration(f"{what}: {value!r} is out of range; it must be between 0 and 100 years")
    return round(milliseconds)


def _parse(text: str, what: str) -> float:
    if len(text) > _LONGEST_TEXT:
        raise BadDuration(f'{what}: {text[:20]!r}... is not a duration; write "250ms", "30s", "10m", "1h30m" or "7d"')
    compact = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", compact, re.ASCII):
        return float(compact) * 1000
    parts = _PART.findall(compact)
    if not parts or _PART.sub("", compact).strip():
        raise BadDuration(f'{what}: {text!r} is not a duration; write "250ms", "30s", "10m", "1h30m" or "7d"')
    return sum(float(number) * _UNIT_MS[unit] for number, unit in parts)


def format_ms(milliseconds: int) -> str:
    """The shortest honest text of a duration: `1.5s`, `10m`, `2d`."""
    if milliseconds < 1_000:
        return f"{milliseconds}ms"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24}h"
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest // 1000}s"
