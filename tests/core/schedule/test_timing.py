"""Occurrences: cron lines against a scan of every minute, both changes of the clocks, intervals, bad input."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.schedule.record import Timing
from holdfast.core.schedule.timing import ALIASES, CronLine, Occurrences, zone
from holdfast.errors import BadSchedule

#: Clocks that change at two, at three, at midnight, by half an hour, in the other half of the year, and never.
ZONES = ["America/New_York", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"]
HOUR_MS = 3_600_000


def ms(text: str, zone_name: str = "UTC", fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone_name), fold=fold)
    return round(moment.timestamp() * 1000)


def cron(line: str, zone_name: str = "UTC") -> Occurrences:
    return Occurrences(Timing(cron=line, timezone=zone_name))


def walls(occurrences: list[int], zone_name: str) -> list[str]:
    """The occurrences as the clock on the wall shows them, with its offset."""
    return [datetime.fromtimestamp(each / 1000, ZoneInfo(zone_name)).strftime("%d %H:%M %z") for each in occurrences]


# -- an oracle: looks at every minute, knows only stars, numbers, ranges, steps and lists -----------------------


def parts(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start = low if span == "*" else int(first)
        end = high if span == "*" or (step and not last) else int(last or first)
        found.update(range(start, end + 1, int(step or 1)))
    return found


class Oracle:
    """What the occurrences of a line are, minute by minute."""

    def __init__(self, line: str, zone_name: str) -> None:
        minute, hour, day, month, weekday = line.split()
        self.zone = ZoneInfo(zone_name)
        self.minutes, self.hours = parts(minute, 0, 59), parts(hour, 0, 23)
        self.days, self.months = parts(day, 1, 31), parts(month, 1, 12)
        self.weekdays = {each % 7 for each in parts(weekday, 0, 7)}
        self.either_day = not day.startswith("*") and not weekday.startswith("*")
        self.names_times = not minute.startswith("*") and not hour.startswith("*")

    def matches(self, local: datetime) -> bool:
        by_date, by_week = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        right_day = (by_date or by_week) if self.either_day else (by_date and by_week)
        return right_day and local.month in self.months and local.hour in self.hours and local.minute in self.minutes

    def between(self, start_ms: int, end_ms: int) -> list[int]:
        """The occurrences after the start up to the end."""
        first = start_ms // 60_000 * 60_000 - 48 * HOUR_MS
        moments = range(first, end_ms + 48 * HOUR_MS, 60_000)
        shown = {each: datetime.fromtimestamp(each / 1000, self.zone).replace(tzinfo=None, fold=0) for each in moments}
        found = self._once_each(shown) if self.names_times else {each for each in moments if self.matches(shown[each])}
        return sorted(each for each in found if start_ms < each <= end_ms)

    def _once_each(self, shown: dict[int, datetime]) -> set[int]:
        """For every time that the line names: the first moment that shows it, or a later time if nothing does."""
        ordered = sorted(shown)
        found, highest = set[int](), shown[ordered[0]]
        for moment in ordered[1:]:
            while highest < shown[moment]:  # each time on the wall up to here comes up for the first time
                highest += timedelta(minutes=1)
                if self.matches(highest):
                    found.add(moment)
        return found


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, high).map(lambda step: f"*/{step}")
    lists = st.lists(st.one_of(number.map(str), spans), min_size=1, max_size=3).map(",".join)
    wide = st.tuples(st.integers(low, high // 2), st.integers(high // 2 + 1, high), st.integers(1, 9))
    return st.one_of(st.just("*"), steps, lists, wide.map(lambda span: "{}-{}/{}".format(*span)))


lines = st.tuples(field(0, 59), field(0, 23), field(1, 28), st.just("*"), field(0, 7)).map(" ".join)
#: Around the changes of 2026 and 2027 in all of these zones, and any other time.
changes = st.sampled_from(
    ["2026-03-08", "2026-11-01", "2026-03-29", "2026-10-25", "2026-09-06", "2026-04-05", "2026-10-04", "2027-02-07"]
)


@given(lines, st.sampled_from(ZONES), changes, st.integers(-30 * HOUR_MS, 30 * HOUR_MS))
@example("30 2 * * *", "America/New_York", "2026-03-08", 0)
@example("30 1 * * *", "America/New_York", "2026-11-01", 0)
@example("*/30 1 * * 0", "America/Santiago", "2026-09-06", -HOUR_MS)  # cronsim alone loses both occurrences of this day
@example("*/10 3 * * *", "Australia/Lord_Howe", "2026-10-04", -20 * HOUR_MS)  # and three of this one
@example("*/2 1 * * */3", "America/New_York", "2026-11-01", 0)  # the hour comes again, the day does not
def test_occurrences_are_those_of_a_scan_of_every_minute(line: str, zone_name: str, day: str, shift_ms: int) -> None:
    start = ms(day) + shift_ms
    end = start + 48 * HOUR_MS
    occurrences = cron(line, zone_name)
    found: list[int] = []
    for each in occurrences.follow(start):
        if each > end or len(found) == 60:
            break
        found.append(each)
    expected = Oracle(line, zone_name).between(start, end)
    assert found == expected[: len(found)]
    assert len(found) == min(len(expected), 60)


@given(lines, st.sampled_from(ZONES), changes, st.integers(0, 48 * HOUR_MS), st.integers(0, 48 * HOUR_MS))
def test_the_next_occurrence_does_not_depend_on_where_one_begins_to_look(
    line: str, zone_name: str, day: str, one: int, other: int
) -> None:
    occurrences = cron(line, zone_name)
    early, late = sorted((ms(day) + one, ms(day) + other))
    following = occurrences.after(early)
    assert following is not None
    assert following > early
    if following > late:
        assert occurrences.after(late) == following
    else:
        assert occurrences.latest(following, late) == max(each for each in Oracle(line, zone_name).between(early, late))


# -- the clocks change ------------------------------------------------------------------------------------------


def test_a_time_in_the_skipped_hour_occurrences_once_right_after_it() -> None:
    occurrences = cron("30 2 * * *", "America/New_York").upcoming(ms("2026-03-07T12:00", "America/New_York"), 2)
    assert walls(occurrences, "America/New_York") == ["08 03:00 -0400", "09 02:30 -0400"]


def test_a_time_in_the_repeated_hour_occurrences_once() -> None:
    occurrences = cron("30 1 * * *", "America/New_York").upcoming(ms("2026-10-31T12:00", "America/New_York"), 2)
    assert walls(occurrences, "America/New_York") == ["01 01:30 -0400", "02 01:30 -0500"]


def test_a_node_that_looks_in_the_second_run_of_the_hour_does_not_occurrence_again() -> None:
    again = ms("2026-11-01T01:10", "America/New_York", fold=1)
    occurrences = cron("30 1 * * *", "America/New_York").upcoming(again, 1)
    assert walls(occurrences, "America/New_York") == ["02 01:30 -0500"]


def test_a_rhythm_goes_on_through_both_changes() -> None:
    spring = cron("*/30 * * * *", "Europe/Berlin").upcoming(ms("2026-03-29T01:15", "Europe/Berlin"), 3)
    assert walls(spring, "Europe/Berlin") == ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]
    autumn = cron("*/30 * * * *", "Europe/Berlin").upcoming(ms("2026-10-25T02:15", "Europe/Berlin"), 4)
    assert walls(autumn, "Europe/Berlin") == ["25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"]


def test_seconds_come_first_and_keep_to_one_occurrence_a_day_too() -> None:
    occurrences = cron("15 30 2 * * *", "America/New_York").upcoming(ms("2026-03-07T02:31", "America/New_York"), 2)
    assert [each % 60_000 for each in occurrences] == [0, 15_000]  # right after the gap, then at its time again
    every_ten = cron("*/10 * * * * *").upcoming(ms("2026-01-01T00:00:55"), 3)
    assert [each - ms("2026-01-01T00:01") for each in every_ten] == [0, 10_000, 20_000]


def test_all_times_of_a_skipped_hour_are_one_occurrence() -> None:
    occurrences = cron("0,15,45 2 * * *", "America/New_York").upcoming(ms("2026-03-08T00:00", "America/New_York"), 2)
    assert walls(occurrences, "America/New_York") == ["08 03:00 -0400", "09 02:00 -0400"]


# -- intervals --------------------------------------------------------------------------------------------------


@given(st.integers(1_000, 10**10), st.integers(0, 10**13))
def test_intervals_count_from_the_epoch(every_ms: int, moment_ms: int) -> None:
    occurrence = Occurrences(Timing(every_ms=every_ms)).after(moment_ms)
    assert occurrence is not None
    assert occurrence % every_ms == 0
    assert moment_ms < occurrence <= moment_ms + every_ms


@given(st.integers(1_000, 10**6), st.integers(0, 10**9), st.integers(0, 10**12))
def test_the_latest_occurrence_is_found_without_counting_them_all(every_ms: int, first: int, span_ms: int) -> None:
    known, until = first * every_ms, first * every_ms + span_ms
    assert Occurrences(Timing(every_ms=every_ms)).latest(known, until) == until // every_ms * every_ms


# -- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "advice"),
    [
        (Timing(), "either a cron line or an interval"),
        (Timing(cron="0 3 * * *", every_ms=5_000), "either a cron line or an interval"),
        (Timing(cron="61 * * * *"), "bad minute; write minute, hour"),
        (Timing(cron="* * * *"), "neither five fields nor six"),
        (Timing(cron=""), "not a cron line"),
        (Timing(cron="0 0 30 2 *"), "bad day-of-month"),
        (Timing(cron="@reboot"), "@hourly"),
        (Timing(cron="*" * 10_000), "the limit is 256"),
        (Timing(cron="0-99999999999999999 * * * *"), "bad minute"),
        (Timing(cron="0 3 * * ☃"), "characters that no cron line has"),
        (Timing(cron="0 3 * * *", timezone="Europe/Berln"), "did you mean Europe/Berlin?"),
        (Timing(cron="0 3 * * *", timezone="europe/berlin"), "did you mean Europe/Berlin?"),
        (Timing(cron="0 3 * * *", timezone="../../etc/passwd"), "is unknown"),
        (Timing(cron="0 3 * * *", timezone="Europe"), "is unknown"),
        (Timing(cron="0 3 * * *", timezone="a\0b"), "is unknown"),
        (Timing(cron="0 3 * * *", timezone=""), "not the name of a time zone"),
        (Timing(every_ms=999), "the shortest interval is 1s"),
        (Timing(every_ms=0), "the shortest interval is 1s"),
        (Timing(every_ms=60_000, timezone="Europe/Berlin"), "goes with a cron line"),
        (Timing(every_ms=60_000, jitter_ms=60_000), "not shorter than the 1m"),
        (Timing(cron="0 3 * * *", jitter_ms=86_400_001), "between 0 and 1d"),
        (Timing(cron="0 3 * * *", window_ms=0), "above 0"),
    ],
)
def test_a_timing_that_cannot_be_is_refused_in_one_line(timing: Timing, advice: str) -> None:
    with pytest.raises(BadSchedule) as caught:
        Occurrences(timing)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="0123456789*,/-#LWMON @x\n", max_size=40))
def test_any_text_is_a_line_or_is_refused(line: str) -> None:
    try:
        occurrences = cron(line, "Europe/Berlin")
    except BadSchedule:
        return
    assert occurrences.after(ms("2026-01-01")) is not None


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_are_lines(alias: str) -> None:
    assert cron(alias).upcoming(ms("2026-01-01"), 3) == cron(ALIASES[alias]).upcoming(ms("2026-01-01"), 3)
    assert CronLine(alias.upper()).names_times == CronLine(ALIASES[alias]).names_times


def test_utc_needs_no_table() -> None:
    assert zone("UTC") is UTC
