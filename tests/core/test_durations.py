from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.durations import LONGEST_MS, duration_ms, format_ms
from holdfast.errors import BadDuration

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0, 0),
        (90, 90_000),
        (1.5, 1_500),
        ("90", 90_000),
        ("1.5", 1_500),
        ("250ms", 250),
        ("30s", 30_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        (" 7D ", 604_800_000),
        ("2w", 1_209_600_000),
        ("0.5h", 1_800_000),
        (timedelta(minutes=2, milliseconds=3), 120_003),
    ],
)
def test_durations_as_people_write_them(written: object, expected: int) -> None:
    assert duration_ms(written) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "  ",
        "ten",
        "10 minutes",
        "-5s",
        "5x",
        "s5",
        "5m!",
        "1e3",
        "٣s",
        "10m10",
        "1.s",
        ".5s",
        True,
        None,
        [1],
        b"5s",
    ],
)
def test_what_is_no_duration_is_refused_with_its_name(written: object) -> None:
    with pytest.raises(BadDuration, match=r"^lease: ") as caught:
        duration_ms(written, "lease")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_text_without_end_is_refused_before_it_is_searched() -> None:
    with pytest.raises(BadDuration) as caught:
        duration_ms("9" * 1_000_000 + "x", "delay")  # looked through, this takes a day
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("written", [-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf"), "99999w", 1e300])
def test_out_of_range_is_refused(written: object) -> None:
    with pytest.raises(BadDuration, match="out of range"):
        duration_ms(written)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    expected = sum(number * UNITS[unit] for number, unit in parts)
    text = "".join(f"{number}{unit}" for number, unit in parts)
    if expected <= LONGEST_MS:
        assert duration_ms(text) == expected
    else:
        with pytest.raises(BadDuration):
            duration_ms(text)


@given(st.integers(0, LONGEST_MS))
def test_a_timedelta_keeps_its_milliseconds(milliseconds: int) -> None:
    assert duration_ms(timedelta(milliseconds=milliseconds)) == milliseconds


@given(st.text(max_size=20) | st.from_regex(r"\A([0-9.]{1,4}(ms|s|m|h|d|w| )){1,3}\Z"))
def test_any_text_is_a_duration_or_refused_and_nothing_else(text: str) -> None:
    with contextlib.suppress(BadDuration):
        assert 0 <= duration_ms(text) <= LONGEST_MS


@given(st.integers(0, LONGEST_MS))
def test_what_is_shown_can_be_read_back_and_is_nearly_the_same(milliseconds: int) -> None:
    shown = format_ms(milliseconds)
    # Two units are shown at most, so what is left out is less than one of the smaller unit.
    lost = milliseconds - duration_ms(shown)
    assert abs(lost) < max(1, milliseconds // 24 + 1)


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(0, "0ms"), (999, "999ms"), (1_500, "1.5s"), (600_000, "10m"), (172_800_000, "2d"), (90_000, "1m30s")],
)
def test_shortest_honest_text(milliseconds: int, shown: str) -> None:
    assert format_ms(milliseconds) == shown
