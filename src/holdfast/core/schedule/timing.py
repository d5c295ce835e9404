"""When a schedule is due: cron lines and intervals over time zones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.core.durations import format_ms
from holdfast.core.schedule.record import Timing
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


# -- cron ----------------------------------------------------------------------------------------------------


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
#: A line that has no occurrence within decades of this day never has one.
_SOME_DAY = datetime(2024, 1, 1)  # noqa: DTZ001  (a clock without a zone)


class CronLine:
    """A cron line that is valid and has at least one occurrence."""

    def __init__(self, line: str) -> None:
        self._fields = _expanded(line)
        #: Names times of day, rather than a rhythm: such a line keeps to one occurrence a day when clocks change.
        self.names_times = not any(field.startswith("*") for field in self._fields.split()[:-3])
        try:
            if next(self.after(_SOME_DAY), None) is None:
                raise BadSchedule(f"cron: {line!r} names a day that never comes")
        except CronSimError as error:
            raise BadSchedule(f"cron: {line!r} is refused: {_problem(error)}; {_ADVICE}") from None

    def after(self, local: datetime) -> Iterator[datetime]:
        """The times after this one, in order, on a clock that is never changed."""
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


# -- occurrences ---------------------------------------------------------------------------------------------


SHORTEST_EVERY_MS = 1_000
LONGEST_JITTER_MS = 86_400_000
LONGEST_WINDOW_MS = 366 * 86_400_000
#: No zone's clock was ever changed by more than this, nor twice in this time.
_LARGEST_CHANGE_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  (a clock without a zone)
_MS = timedelta(milliseconds=1)

#: The first occurrence after a moment, None if there is none.
After = Callable[[int], int | None]


@lru_cache(maxsize=10_000)
def occurrences_of(timing: Timing) -> Occurrences:
    """The occurrences of a timing; `BadSchedule` says in one line what is wrong with it."""
    return Occurrences(timing)


class Occurrences:
    """The occurrences of a schedule, in milliseconds since the epoch."""

    def __init__(self, timing: Timing) -> None:
        self.after: After = _after(timing)
        _check_rest(timing)

    def follow(self, moment_ms: int) -> Iterator[int]:
        """The occurrences after this moment, in order."""
        following = self.after(moment_ms)
        while following is not None:
            yield following
            following = self.after(following)

    def upcoming(self, moment_ms: int, count: int) -> list[int]:
        """The first `count` occurrences after this moment."""
        return list(itertools.islice(self.follow(moment_ms), count))

    def latest(self, known_ms: int, until_ms: int) -> int:
        """The last occurrence up to `until_ms`, found by bisection: there may be one for every second of many years.

        `known_ms` is an occurrence before that.
        """
        none_after_ms = until_ms
        while known_ms < none_after_ms:
            found = self.after((known_ms + none_after_ms) // 2)
            if found is not None and found <= until_ms:
                known_ms = found
            else:
                none_after_ms = (known_ms + none_after_ms) // 2
        return known_ms


def _after(timing: Timing) -> After:
    if (timing.cron is None) == (timing.every_ms is None):
        raise BadSchedule('a schedule needs either a cron line or an interval: cron="0 3 * * *" or every="10m"')
    if timing.cron is not None:
        line = CronLine(timing.cron)
        on_wall = _OnWall(zone(timing.timezone))
        return _times_of_day(line, on_wall) if line.names_times else _rhythm(line, on_wall)
    if timing.timezone != "UTC":
        raise BadSchedule("timezone goes with a cron line: an interval counts from 1970-01-01T00:00Z everywhere")
    return _interval(timing.every_ms or 0)


def _check_rest(timing: Timing) -> None:
    if not 0 <= timing.jitter_ms <= LONGEST_JITTER_MS:
        raise BadSchedule(f"jitter: {format_ms(timing.jitter_ms)} is out of range; it must be between 0 and 1d")
    if timing.every_ms is not None and timing.jitter_ms >= timing.every_ms:
        every = format_ms(timing.every_ms)
        raise BadSchedule(
            f"jitter: {format_ms(timing.jitter_ms)} is not shorter than the {every} between two occurrences"
        )
    if not 1 <= timing.window_ms <= LONGEST_WINDOW_MS:
        raise BadSchedule(f"window: {format_ms(timing.window_ms)} is out of range; it must be above 0 and up to 366d")


def _interval(every_ms: int) -> After:
    """Multiples of the interval since the epoch, so that it does not matter who counts, or since when."""
    if every_ms < SHORTEST_EVERY_MS:
        raise BadSchedule(f"every: {format_ms(every_ms)} is too short; the shortest interval is 1s")
    return lambda moment_ms: (moment_ms // every_ms + 1) * every_ms


def _times_of_day(line: CronLine, on_wall: _OnWall) -> After:
    def after(moment_ms: int) -> int | None:
        # In the second run of a repeated hour, times come up that were occurrences in the first one.
        times = map(on_wall.first, line.after(on_wall.shows(moment_ms)))
        return next((occurrence for occurrence in times if occurrence > moment_ms), None)

    return after


def _rhythm(line: CronLine, on_wall: _OnWall) -> After:
    def after(moment_ms: int) -> int | None:
        offset_ms = on_wall.offset(moment_ms)
        while True:
            local = next(line.after(_as_datetime(moment_ms + offset_ms)), None)
            if local is None:
                return None
            occurrence = _as_ms(local) - offset_ms
            horizon_ms = min(occurrence, moment_ms + 2 * _LARGEST_CHANGE_MS)
            if on_wall.offset(horizon_ms) != offset_ms:
                changed_ms = on_wall.change(moment_ms, horizon_ms)
                moment_ms, offset_ms = changed_ms - 1, on_wall.offset(changed_ms)
            elif occurrence > horizon_ms:  # nothing before it: look again from close by, with the offset there
                moment_ms = occurrence - _LARGEST_CHANGE_MS
                offset_ms = on_wall.offset(moment_ms)
            else:
                return occurrence

    return after


class _OnWall:
    """The clock on the wall of a zone."""

    def __init__(self, of: tzinfo) -> None:
        self._zone = of

    def shows(self, moment_ms: int) -> datetime:
        """The time that it shows."""
        return (_as_datetime(moment_ms).replace(tzinfo=UTC)).astimezone(self._zone).replace(tzinfo=None, fold=0)

    def offset(self, moment_ms: int) -> int:
        """How far it is ahead of UTC."""
        return _as_ms(self.shows(moment_ms)) - moment_ms

    def first(self, local: datetime) -> int:
        """When it shows this time first, or the first later one if it never shows this."""
        moment_ms = self._moment(local, fold=0)
        return moment_ms if self.shows(moment_ms) == local else self.change(self._moment(local, fold=1), moment_ms)

    def change(self, before_ms: int, after_ms: int) -> int:
        """When it was changed between two moments of different offsets: the first moment of the later one."""
        later = self.offset(after_ms)
        while after_ms - before_ms > 1:
            middle_ms = (before_ms + after_ms) // 2
            if self.offset(middle_ms) == later:
                after_ms = middle_ms
            else:
                before_ms = middle_ms
        return after_ms

    def _moment(self, local: datetime, fold: int) -> int:
        return _as_ms(local.replace(tzinfo=self._zone, fold=fold).astimezone(UTC).replace(tzinfo=None))


def _as_datetime(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MS


def _as_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MS
