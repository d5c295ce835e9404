"""Time zones by name. Their tables are files that change a few times a year: constants, as far as the core goes."""

from __future__ import annotations

from datetime import UTC, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from holdfast.errors import BadSchedule

_LONGEST_NAME = 64


@lru_cache(maxsize=1_000)
def zone(name: str) -> tzinfo:
    """The time zone of this name, or a `BadSchedule` that says what to write."""
    if name == "UTC":
        return UTC
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
        raise BadSchedule(f"timezone: {name!r:.80} is not the name of a time zone; write one such as Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # also the names of folders, and paths that lead elsewhere
        raise BadSchedule(f"timezone: {name!r} is unknown; {_advice(name)}") from None


def _advice(name: str) -> str:
    known = {each.lower(): each for each in available_timezones()}
    close = get_close_matches(name.lower().replace(" ", "_"), known, n=1)
    return f"did you mean {known[close[0]]}?" if close else "write one such as Europe/Berlin, America/New_York or UTC"
