"""Cron lines: read once, then asked for their times on a clock without a zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from cronsim import CronSim, CronSimError

from holdfast.errors import BadSchedule

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: Far longer than any sensible line, and short enough to be read at no cost.
LONGEST_LINE = 256
_ALLOWED = re.compile(r"[0-9A-Za-z*,/#\s-]+", re.ASCII)
_ADVICE = 'write minute, hour, day, month and weekday, as in "30 2 * * 1-5"; a sixth field in front is for seconds'
#: A line that has not ticked within decades of this day never will.
_SOME_DAY = datetime(2024, 1, 1)  # noqa: DTZ001  (a clock without a zone)


class CronLine:
    """A line that is known to be right, and to tick some day."""

    def __init__(self, line: str) -> None:
        self._fields = _expanded(line)
        #: Names times of day, rather than a rhythm: such a line keeps to one tick a day when clocks change.
        self.names_times = not any(field.startswith("*") for field in self._fields.split()[:-3])
        try:
            if next(self.after(_SOME_DAY), None) is None:
                raise BadSchedule(f"cron: {line!r} names a day that never comes")
        except CronSimError as error:
            raise BadSchedule(f"cron: {line!r} is refused: {_problem(error)}; {_ADVICE}") from None

    def after(self, local: datetime) -> Iterator[datetime]:
        """The times after this one, in order, on a clock that nobody changes."""
        return CronSim(self._fields, local)

    def explained(self) -> str:
        """The line in words, such as "At 03:00 every day"."""
        return CronSim(self._fields, _SOME_DAY).explain()


def _expanded(line: str) -> str:
    if not isinstance(line, str) or not line.strip():
        raise BadSchedule(f"cron: {line!r:.80} is not a cron line; {_ADVICE}")
    if len(line) > LONGEST_LINE:
        raise BadSchedule(f"cron: a line of {len(line):,} characters is refused, the limit is {LONGEST_LINE}")
    if line.strip().startswith("@"):
        alias = line.strip().lower()
        if alias not in ALIASES:
            raise BadSchedule(f"cron: {line!r} is not known; the short forms are {', '.join(ALIASES)}")
        return ALIASES[alias]
    if not _ALLOWED.fullmatch(line):
        raise BadSchedule(f"cron: {line!r} has characters that no cron line has; {_ADVICE}")
    return line


def _problem(error: CronSimError) -> str:
    return str(error).lower().replace("wrong number of fields", "it has neither five fields nor six")
