"""Which occurrences are made: late, missed, overlapping; how schedules are changed; what task a occurrence becomes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.names import check_request_id
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule import decide as rescheduling
from holdfast.core.schedule.decide import LATE_MS, Decision, changed_timing, decide
from holdfast.core.schedule.occurrences import jitter_of, shown_time, task_of_occurrence, task_on_demand
from holdfast.core.schedule.record import Missed, Overlap, Schedule, ScheduledCall, Timing
from holdfast.core.schedule.timing import occurrences_of
from holdfast.errors import BadSchedule

MINUTE_MS = 60_000
NOON_MS = 1_800_014_400_000
LIMIT = 100
CALL = ScheduledCall(type="report")


def schedule(next_in_ms: int = 0, *, waiting: bool = False, **timing: Any) -> Schedule:
    """Occurrences every minute, next at noon or so much after it."""
    given = {"every_ms": MINUTE_MS, **timing}
    return Schedule(
        name="s", timing=Timing(**given), call=CALL, next_at_ms=NOON_MS + next_in_ms, waiting=waiting, version=7
    )


def decided(one: Schedule, after_ms: int, *, active: bool = False, limit: int = LIMIT) -> Decision:
    decision = decide(one, NOON_MS + after_ms, active=active, limit=limit)
    assert decision is not None
    assert decision.schedule.version == one.version + 1
    return decision


def made(one: Schedule, after_ms: int, **about: Any) -> list[int]:
    """The occurrences made that long after noon, in minutes after noon."""
    return [(occurrence - NOON_MS) // MINUTE_MS for occurrence in decided(one, after_ms, **about).occurrences]


def next_minute(decision: Decision) -> int:
    assert decision.schedule.next_at_ms is not None
    return (decision.schedule.next_at_ms - NOON_MS) // MINUTE_MS


# -- late and missed --------------------------------------------------------------------------------------------


def test_nothing_happens_before_the_occurrence() -> None:
    assert decide(schedule(), NOON_MS - 1, active=False, limit=LIMIT) is None
    assert decide(replace(schedule(), next_at_ms=None), NOON_MS, active=False, limit=LIMIT) is None


def test_a_occurrence_is_made_and_the_next_one_awaited() -> None:
    decision = decided(schedule(), 3)
    assert decision.occurrences == [NOON_MS]
    assert next_minute(decision) == 1
    assert decision.schedule.last_at_ms == NOON_MS
    assert decision.schedule.skipped_at_ms is None


@pytest.mark.parametrize("missed", Missed)
def test_late_occurrences_are_all_made_whatever_is_said_of_missed_ones(missed: Missed) -> None:
    one = schedule(every_ms=5_000, missed=missed)
    decision = decided(one, LATE_MS)
    assert decision.occurrences == [NOON_MS + late for late in (0, 5_000, 10_000, 15_000)]
    assert decision.schedule.skipped_at_ms is None


def test_missed_occurrences_are_skipped() -> None:
    decision = decided(schedule(missed=Missed.SKIP), 5 * MINUTE_MS + 30_000)
    assert (decision.occurrences, next_minute(decision)) == ([], 6)
    assert (decision.schedule.skipped_at_ms, decision.schedule.skipped_because) == (NOON_MS, "missed")
    assert decision.schedule.last_at_ms is None


def test_one_task_makes_up_for_all_missed_occurrences() -> None:
    assert made(schedule(), 5 * MINUTE_MS + 30_000) == [5]
    assert made(schedule(), LATE_MS + 1) == [0]


def test_a_late_occurrence_makes_up_for_the_missed_ones_before_it() -> None:
    assert made(schedule(), 5 * MINUTE_MS + 1_000) == [5]


def test_all_missed_occurrences_are_made_as_far_back_as_the_window_goes() -> None:
    decision = decided(schedule(missed=Missed.ALL, window_ms=3 * MINUTE_MS), 5 * MINUTE_MS + 30_000)
    assert [(occurrence - NOON_MS) // MINUTE_MS for occurrence in decision.occurrences] == [3, 4, 5]
    assert decision.schedule.skipped_at_ms == NOON_MS


def test_a_window_shorter_than_what_counts_as_late_loses_no_late_occurrence() -> None:
    assert made(schedule(missed=Missed.ALL, window_ms=1), 10_000) == [0]


def test_many_missed_occurrences_are_made_a_portion_at_a_time() -> None:
    one = schedule(missed=Missed.ALL, window_ms=10 * MINUTE_MS)
    first = decided(one, 5 * MINUTE_MS, limit=2)
    assert (made(one, 5 * MINUTE_MS, limit=2), next_minute(first)) == ([0, 1], 2)
    second = decided(first.schedule, 5 * MINUTE_MS, limit=2)
    third = decided(second.schedule, 5 * MINUTE_MS, limit=2)
    assert [*second.occurrences, *third.occurrences] == [NOON_MS + n * MINUTE_MS for n in (2, 3, 4, 5)]
    assert next_minute(third) == 6


def test_a_portion_of_those_within_the_window_is_not_all_of_them() -> None:
    one = schedule(missed=Missed.ALL, window_ms=3 * MINUTE_MS)
    first = decided(one, 60 * MINUTE_MS, limit=2)
    second = decided(first.schedule, 60 * MINUTE_MS, limit=2)
    assert [*first.occurrences, *second.occurrences] == [NOON_MS + n * MINUTE_MS for n in (57, 58, 59, 60)]
    newest = schedule(missed=Missed.ALL, overlap=Overlap.SKIP)
    assert made(newest, 60 * MINUTE_MS, limit=2) == [60]


def test_a_year_without_workers_costs_nothing() -> None:
    one = schedule(every_ms=None, cron="* * * * * *", timezone="Europe/Berlin")
    assert len(decided(one, 365 * 86_400_000).occurrences) == LATE_MS // 1000 + 1


# -- overlap ----------------------------------------------------------------------------------------------------


def test_occurrences_may_overlap() -> None:
    assert made(schedule(), 0, active=True) == [0]


def test_a_occurrence_is_skipped_while_the_last_task_is_active() -> None:
    decision = decided(schedule(overlap=Overlap.SKIP), 3, active=True)
    assert (decision.occurrences, next_minute(decision)) == ([], 1)
    assert (decision.schedule.skipped_at_ms, decision.schedule.skipped_because) == (NOON_MS, "overlap")
    assert made(schedule(overlap=Overlap.SKIP), 3) == [0]


def test_of_several_due_occurrences_one_is_made_where_two_must_not_overlap() -> None:
    one = schedule(overlap=Overlap.SKIP, missed=Missed.ALL)
    assert made(one, 3 * MINUTE_MS) == [3]
    assert decided(one, 3 * MINUTE_MS).schedule.skipped_because == "overlap"


def test_a_occurrence_waits_in_line_until_the_last_task_has_ended() -> None:
    one = schedule(overlap=Overlap.QUEUE, missed=Missed.SKIP)
    waiting = decided(one, 3, active=True)
    assert (waiting.occurrences, waiting.schedule.next_at_ms, waiting.schedule.waiting) == ([], NOON_MS, True)
    assert decide(waiting.schedule, NOON_MS + 9 * MINUTE_MS, active=True, limit=LIMIT) is None
    after = decided(waiting.schedule, 9 * MINUTE_MS + 30_000)
    assert after.occurrences == [NOON_MS]  # late beyond measure, and yet not missed: it stood in line
    assert next_minute(after) == 10
    assert not after.schedule.waiting
    assert (after.schedule.skipped_at_ms, after.schedule.skipped_because) == (NOON_MS + MINUTE_MS, "missed")


def test_later_occurrences_collapse_by_what_is_said_of_missed_ones() -> None:
    one = schedule(overlap=Overlap.QUEUE, waiting=True)
    after = decided(one, 9 * MINUTE_MS + 30_000)
    assert (after.occurrences, next_minute(after), after.schedule.waiting) == ([NOON_MS], 9, True)
    every = replace(one, timing=replace(one.timing, missed=Missed.ALL))
    after = decided(every, 9 * MINUTE_MS + 30_000)
    assert (after.occurrences, next_minute(after), after.schedule.waiting) == ([NOON_MS], 1, True)


def test_the_only_occurrence_that_waited_is_made_once() -> None:
    after = decided(schedule(overlap=Overlap.QUEUE, waiting=True), 40_000)
    assert (after.occurrences, next_minute(after), after.schedule.waiting) == ([NOON_MS], 1, False)


# -- whoever looks whenever: each occurrence once ---------------------------------------------------------------------


@given(
    st.sampled_from([Timing(every_ms=1_000), Timing(cron="*/7 * * * * *"), Timing(cron="* * * * *", jitter_ms=500)]),
    st.sampled_from(Missed),
    st.lists(st.integers(0, LATE_MS), min_size=1, max_size=40),
    st.integers(1, 20),
)
def test_looks_within_fifteen_seconds_make_each_occurrence_once(
    timing: Timing, missed: Missed, pauses: list[int], limit: int
) -> None:
    one = rescheduling.begun(Schedule(name="s", timing=replace(timing, missed=missed), call=CALL), NOON_MS)
    now_ms, occurrences = NOON_MS, list[int]()
    for pause_ms in pauses:
        now_ms += pause_ms
        while decision := decide(one, now_ms, active=False, limit=limit):
            occurrences += decision.occurrences
            one = decision.schedule
    expected = [each for each in occurrences_of(timing).upcoming(NOON_MS, len(occurrences) + 1) if each <= now_ms]
    assert occurrences == expected


@given(st.integers(0, 600_000), st.lists(st.integers(0, 20 * MINUTE_MS), max_size=10), st.integers(1, 20))
def test_all_occurrences_within_the_window_are_made_once(window_ms: int, pauses: list[int], limit: int) -> None:
    timing = Timing(every_ms=20_000, missed=Missed.ALL, window_ms=max(1, window_ms))
    one = rescheduling.begun(Schedule(name="s", timing=timing, call=CALL), NOON_MS)
    now_ms, occurrences, expected = NOON_MS, list[int](), list[int]()
    for pause_ms in pauses:
        since_ms = max(now_ms, now_ms + pause_ms - max(window_ms, LATE_MS) - 1)
        now_ms += pause_ms
        expected += [occurrence for occurrence in range(NOON_MS, now_ms + 1, 20_000) if occurrence > since_ms]
        while decision := decide(one, now_ms, active=False, limit=limit):
            occurrences += decision.occurrences
            one = decision.schedule
    assert occurrences == expected


@given(
    st.sampled_from(Missed),
    st.sampled_from(Overlap),
    st.lists(st.tuples(st.integers(0, 10 * MINUTE_MS), st.booleans()), max_size=40),
    st.integers(1, 5),
)
def test_no_occurrence_is_ever_made_twice_or_before_its_time_or_out_of_order(
    missed: Missed, overlap: Overlap, looks: list[tuple[int, bool]], limit: int
) -> None:
    timing = Timing(every_ms=20_000, missed=missed, overlap=overlap)
    one = rescheduling.begun(Schedule(name="s", timing=timing, call=CALL), NOON_MS)
    now_ms, occurrences = NOON_MS, [NOON_MS]
    for pause_ms, active in looks:
        now_ms += pause_ms
        decision = decide(one, now_ms, active=active, limit=limit)
        if decision is None:
            continue
        one = decision.schedule
        assert len(decision.occurrences) <= (limit if overlap is Overlap.ALLOW else 1)
        assert not (active and decision.occurrences and overlap is not Overlap.ALLOW)
        occurrences += decision.occurrences
        assert occurrences[-1] <= now_ms
        assert one.next_at_ms is not None
        assert one.next_at_ms > occurrences[-1]
    assert occurrences == sorted(set(occurrences))


# -- changed by people ------------------------------------------------------------------------------------------


def test_a_pause_has_no_occurrences_and_misses_none() -> None:
    paused = rescheduling.paused(schedule(waiting=True))
    assert (paused.next_at_ms, paused.waiting, paused.version) == (None, False, 8)
    assert rescheduling.paused(paused) is paused
    resumed = rescheduling.resumed(paused, NOON_MS + 5 * MINUTE_MS)
    assert resumed.next_at_ms == NOON_MS + 6 * MINUTE_MS
    assert rescheduling.resumed(resumed, NOON_MS) is resumed


def test_another_rhythm_has_another_next_occurrence_and_another_policy_does_not() -> None:
    one = schedule()
    late = NOON_MS + 30_000
    jittered = rescheduling.edited(one, replace(one.timing, jitter_ms=500), CALL, late)
    assert (jittered.next_at_ms, jittered.version) == (NOON_MS, 8)
    slower = rescheduling.edited(one, replace(one.timing, every_ms=10 * MINUTE_MS), CALL, late)
    assert slower.next_at_ms == NOON_MS + 10 * MINUTE_MS
    assert rescheduling.edited(one, one.timing, one.call, late) is one
    asleep = rescheduling.edited(rescheduling.paused(one), slower.timing, CALL, late)
    assert (asleep.next_at_ms, asleep.paused) == (None, True)


def test_definitions_are_told_apart() -> None:
    one, other = Timing(every_ms=5_000), Timing(every_ms=5_000, overlap=Overlap.SKIP)
    assert rescheduling.digest(one, CALL) == rescheduling.digest(Timing(every_ms=5_000), ScheduledCall(type="report"))
    assert rescheduling.digest(one, CALL) != rescheduling.digest(other, CALL)
    assert rescheduling.digest(one, CALL) != rescheduling.digest(one, ScheduledCall(type="report", payload=b'{"a":1}'))


# -- the task of a occurrence -----------------------------------------------------------------------------------------


def test_the_task_of_a_occurrence_says_what_it_was_made_for() -> None:
    call = ScheduledCall(
        type="report", queue="slow", headers={"who": "me"}, priority=3, policy=RunPolicy(max_attempts=2)
    )
    task = task_of_occurrence(replace(schedule(), call=call), NOON_MS, 0)
    assert task.request_id == "schedule:s@2027-01-15T12:00:00Z"
    assert task.headers == {"who": "me", "schedule": "s", "occurrence": "2027-01-15T12:00:00Z"}
    assert (task.type, task.queue, task.priority, task.policy) == ("report", "slow", 3, RunPolicy(max_attempts=2))
    assert (task.run_at_ms, task.delay_ms) == (None, 0)
    assert task_on_demand(schedule(), "0" * 32).request_id is None


def test_the_longest_name_makes_a_request_id() -> None:
    task = task_of_occurrence(replace(schedule(), name="n" * 128), NOON_MS + 1, 0)
    assert task.request_id == check_request_id(f"schedule:{'n' * 128}@2027-01-15T12:00:00.001Z")


@given(st.text(max_size=20), st.integers(0, 10**13), st.integers(1, 10**6))
def test_jitter_is_the_same_for_all_and_within_bounds(name: str, occurrence_ms: int, jitter_ms: int) -> None:
    assert 0 <= jitter_of(name, occurrence_ms, jitter_ms) < jitter_ms
    assert jitter_of(name, occurrence_ms, jitter_ms) == jitter_of(name, occurrence_ms, jitter_ms)


def test_jitter_is_the_same_in_every_process_and_version() -> None:
    assert jitter_of("nightly", NOON_MS, 60_000) == 45_278


def test_jitter_spreads_occurrences_and_schedules() -> None:
    drawn = {jitter_of(name, occurrence, 1_000) for name in "abcd" for occurrence in range(25)}
    assert len(drawn) > 80
    late = task_of_occurrence(schedule(jitter_ms=1_000), NOON_MS, 0).run_at_ms
    assert late is not None
    assert NOON_MS < late < NOON_MS + 1_000


@given(st.integers(0, 10**13))
def test_occurrences_are_shown_to_the_millisecond(occurrence_ms: int) -> None:
    assert round(datetime.fromisoformat(shown_time(occurrence_ms)).timestamp() * 1000) == occurrence_ms


# -- as people write it -----------------------------------------------------------------------------------------


def test_timings_are_written_in_words() -> None:
    timing = changed_timing(Timing(), every="10m", jitter=5, missed="all", window="2h", overlap="queue")
    assert timing == Timing(
        every_ms=600_000, jitter_ms=5_000, missed=Missed.ALL, window_ms=7_200_000, overlap=Overlap.QUEUE
    )
    by_line = changed_timing(timing, cron="  0  3 * *  *", timezone="Europe/Berlin")
    assert (by_line.cron, by_line.every_ms, by_line.overlap) == ("0 3 * * *", None, Overlap.QUEUE)
    assert changed_timing(by_line, every=60).timezone == "UTC"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"cron": "0 3 * * *", "every": "1m"}, "exclude each other"),
        ({}, "either a cron line or an interval"),
        ({"every": -5}, "every: -5 is out of range"),
        ({"every": "soon"}, "not a duration"),
        ({"every": "1m", "jitter": "-1s"}, "jitter"),
        ({"every": "1m", "window": "x"}, "window"),
        ({"every": "1m", "missed": "never"}, "skip or once or all"),
        ({"every": "1m", "overlap": 7}, "allow or skip or queue"),
        ({"cron": 5}, "not text"),
        ({"cron": "0 3 * * *", "timezone": 5}, "not text"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], advice: str) -> None:
    with pytest.raises(BadSchedule) as caught:
        changed_timing(Timing(), **given)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
