from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.durations import LONGEST_MS, Duration
from holdfast.core.priority import (
    AGED_STEP_MS,
    HIGHEST,
    LOWEST,
    STRICT_STEP_MS,
    Order,
    check_priority,
    order_of,
    order_text,
    rank,
    step_of,
)
from holdfast.errors import BadOption, UsageError

times = st.integers(0, 2**42)
priorities = st.integers(LOWEST, HIGHEST)


@given(times, times, priorities)
def test_first_come_first_served_within_a_priority(one: int, other: int, priority: int) -> None:
    for step_ms in (AGED_STEP_MS, STRICT_STEP_MS):
        assert (rank(one, priority, step_ms) < rank(other, priority, step_ms)) == (one < other)


@given(times, times, priorities, priorities)
def test_strict_order_never_lets_a_lower_priority_first(one: int, other: int, low: int, high: int) -> None:
    if low < high:
        assert rank(one, high, STRICT_STEP_MS) < rank(other, low, STRICT_STEP_MS) or one - other >= STRICT_STEP_MS


@given(times, priorities)
def test_every_rank_fits_a_double_exactly(ready_at_ms: int, priority: int) -> None:
    for step_ms in (AGED_STEP_MS, STRICT_STEP_MS):
        value = rank(ready_at_ms, priority, step_ms)
        assert int(float(value)) == value
        assert abs(value) < 2**53


@given(times, priorities, priorities)
def test_each_level_is_worth_one_step_of_waiting(ready_at_ms: int, low: int, high: int) -> None:
    ahead_ms = (high - low) * AGED_STEP_MS
    assert rank(ready_at_ms + ahead_ms, high) == rank(ready_at_ms, low)


def test_aged_order_starves_nobody_under_a_steady_stream_of_urgent_tasks() -> None:
    waiting = [(rank(0, 0), "patient")]
    served_at_ms = None
    for now_ms in range(0, 20 * AGED_STEP_MS, 1_000):
        heapq.heappush(waiting, (rank(now_ms, 5), "urgent"))
        if heapq.heappop(waiting)[1] == "patient":
            served_at_ms = now_ms
            break
    assert served_at_ms is not None
    assert served_at_ms == pytest.approx(5 * AGED_STEP_MS, abs=1_000)


@pytest.mark.parametrize("allowed", [LOWEST, -1, 0, 1, HIGHEST])
def test_priorities_in_range_are_taken(allowed: int) -> None:
    assert check_priority(allowed) == allowed


@pytest.mark.parametrize("wrong", [LOWEST - 1, HIGHEST + 1, 1.0, True, "1", None])
def test_other_priorities_are_refused(wrong: object) -> None:
    with pytest.raises(BadOption, match="from -100 to 100"):
        check_priority(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "step", "step_ms", "text"),
    [
        ("strict", None, STRICT_STEP_MS, "strict"),
        ("aged", None, AGED_STEP_MS, "aged"),
        ("aged", "1m", AGED_STEP_MS, "aged"),
        ("aged", "5m", 300_000, "aged, 5m a level"),
        ("aged", 0.5, 500, "aged, 500ms a level"),
        ("aged", "5200w", 5200 * 604_800_000, "aged, 36400d a level"),
    ],
)
def test_an_order_is_a_step_and_back(order: Order, step: Duration | None, step_ms: int, text: str) -> None:
    assert step_of(order, step) == step_ms
    assert (order_of(step_ms), order_text(step_ms)) == (order, text)


def test_even_the_longest_step_is_not_strict() -> None:
    assert LONGEST_MS < STRICT_STEP_MS


@pytest.mark.parametrize(
    ("order", "step"),
    [("strict", "5m"), ("fifo", None), ("", None), (None, None), ("aged", 0), ("aged", "soon"), ("aged", -1)],
)
def test_an_order_that_is_none_is_refused_in_one_line(order: Order, step: Duration | None) -> None:
    with pytest.raises(UsageError, match=r"^(order|step)\b") as caught:
        step_of(order, step)
    assert "\n" not in str(caught.value)
