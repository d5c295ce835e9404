from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.durations import LONGEST_MS
from holdfast.core.retry import DEFAULT_POLICY, MAX_ATTEMPTS, Retry, RunPolicy, error_name, error_names
from holdfast.errors import BadDuration, BadOption

policies = st.builds(
    RunPolicy,
    base_ms=st.integers(0, 10**9),
    cap_ms=st.integers(0, 10**10),
    jitter=st.floats(0, 1),
)
units = st.floats(0, 1, exclude_max=True)


@given(policies, st.integers(0, 2_000), units)
def test_the_delay_stays_between_the_jittered_and_the_full_backoff(
    policy: RunPolicy, failed_attempts: int, random_unit: float
) -> None:
    full = min(policy.base_ms * 2 ** max(failed_attempts - 1, 0), policy.cap_ms)
    delay_ms = policy.delay_ms(failed_attempts, random_unit)
    assert round(full * (1 - policy.jitter)) <= delay_ms <= full


@given(policies, st.integers(1, 100))
def test_without_a_draw_the_delay_doubles_up_to_the_cap(policy: RunPolicy, failed_attempts: int) -> None:
    now, after = policy.delay_ms(failed_attempts, 0.0), policy.delay_ms(failed_attempts + 1, 0.0)
    assert after == min(2 * now, policy.cap_ms) or now == policy.cap_ms == after


@pytest.mark.parametrize(
    "policy",
    [
        RunPolicy(jitter=-1e300),
        RunPolicy(jitter=1e308),
        RunPolicy(base_ms=10**30, cap_ms=10**30),
        RunPolicy(base_ms=-5, cap_ms=-5),
    ],
)
def test_numbers_that_others_wrote_into_the_store_give_a_delay_that_it_can_keep(policy: RunPolicy) -> None:
    assert 0 <= policy.delay_ms(2, 0.5) <= LONGEST_MS


def test_the_defaults_are_those_that_are_promised() -> None:
    assert Retry().policy() == DEFAULT_POLICY
    waits = [DEFAULT_POLICY.delay_ms(attempt, 0.0) for attempt in range(1, 9)]
    assert waits == [30_000, 60_000, 120_000, 240_000, 480_000, 960_000, 1_800_000, 1_800_000]
    assert DEFAULT_POLICY.delay_ms(1, 0.999_999) == pytest.approx(15_000, abs=1)


class Outage(ConnectionError):
    pass


class LocalOutage(Outage):
    pass


def test_an_error_is_known_by_its_own_name_and_by_those_of_its_bases() -> None:
    names = error_names(LocalOutage())
    assert names[:3] == (f"{__name__}.LocalOutage", f"{__name__}.Outage", "builtins.ConnectionError")
    assert names[-1] == "builtins.BaseException"
    assert "builtins.object" not in names


@pytest.mark.parametrize("listed", [LocalOutage, Outage, ConnectionError, OSError, Exception])
def test_giving_up_on_a_class_counts_for_its_subclasses(listed: type[BaseException]) -> None:
    policy = Retry(give_up_on=(listed,)).policy()
    assert not policy.worth_retrying(error_names(LocalOutage()))
    assert policy.worth_retrying(error_names(KeyboardInterrupt()))


@pytest.mark.parametrize("listed", [ValueError, "ValueError", "builtins.ValueError"])
def test_classes_and_names_mean_the_same(listed: type[BaseException] | str) -> None:
    policy = Retry(retry_on=(listed,)).policy()
    assert policy.retry_on == ("builtins.ValueError",)
    assert policy.worth_retrying(error_names(UnicodeDecodeError("utf-8", b"", 0, 1, "a subclass")))
    assert not policy.worth_retrying(error_names(KeyError()))


def test_giving_up_wins_over_retrying() -> None:
    policy = Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,)).policy()
    assert policy.worth_retrying(error_names(PermissionError()))
    assert not policy.worth_retrying(error_names(FileNotFoundError()))


def test_a_class_of_the_same_name_elsewhere_is_another_error() -> None:
    stranger = type("ValueError", (Exception,), {"__module__": "elsewhere"})
    assert error_name(stranger) == "elsewhere.ValueError"
    assert Retry(give_up_on=(ValueError,)).policy().worth_retrying(error_names(stranger()))


@pytest.mark.parametrize("wrong", [0, -1, MAX_ATTEMPTS + 1, 1.5, True, "5", None])
def test_bad_max_attempts_are_refused_when_declared(wrong: object) -> None:
    with pytest.raises(BadOption, match="max_attempts"):
        Retry(max_attempts=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-0.1, 1.1, "half", float("nan")])
def test_bad_jitter_is_refused_when_declared(wrong: object) -> None:
    with pytest.raises(BadOption, match="jitter"):
        Retry(jitter=wrong)  # type: ignore[arg-type]


def test_bad_durations_are_refused_when_declared() -> None:
    with pytest.raises(BadDuration, match="retry: base"):
        Retry(base="soon")
    with pytest.raises(BadDuration, match="retry: cap"):
        Retry(cap=-1)


@pytest.mark.parametrize(
    "wrong", [ValueError, "ValueError", (7,), (int,), ("a.\ud83d",), ("x" * 600,), (OSError,) * 101]
)
def test_bad_error_lists_are_refused_when_declared(wrong: object) -> None:
    with pytest.raises(BadOption, match="give_up_on"):
        Retry(give_up_on=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dead_letter", [True, False])
def test_whether_a_dead_letter_is_kept_is_part_of_the_policy(dead_letter: bool) -> None:
    assert Retry(dead_letter=dead_letter).policy().dead_letter is dead_letter
