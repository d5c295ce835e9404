"""`in_memory(app)`: a clock that the test moves; retries, schedules, limits and expiry happen without a sleep."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Keys, Retry, as_completed, current
from holdfast.core.task import State
from holdfast.errors import ClaimLost, ResultTimeout, TimedOut, UsageError
from holdfast.testing import AppTest, Ran, arun_due, in_memory, run_due

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
app = Holdfast("redis://never.invalid:1/0")


@pytest.fixture
def test() -> Iterator[AppTest]:
    with in_memory(app, now=NEW_YEAR) as test:
        yield test


def outcomes(ran: list[Ran]) -> list[tuple[str, int, str]]:
    return [(each.type, each.attempt, each.outcome) for each in ran]


@app.task(name="flaky", retry=Retry(max_attempts=3, base="10m", cap="1h", jitter=0))
def flaky() -> str:
    if current().attempt < 3:
        raise ValueError("not yet")
    return "done"


def test_retries_happen_at_their_time(test: AppTest) -> None:
    handle = flaky.enqueue()
    ran = test.run_due()
    assert outcomes(ran) == [("flaky", 1, "retried")]
    assert isinstance(ran[0].error, ValueError)
    assert test.advance("9m") == []
    assert outcomes(test.advance("1h")) == [("flaky", 2, "retried"), ("flaky", 3, "succeeded")]
    assert handle.result() == "done"
    started = [datetime.fromtimestamp(run.started_at_ms / 1000, UTC) - NEW_YEAR for run in handle.history()]
    assert started == [timedelta(0), timedelta(minutes=10), timedelta(minutes=30)]
    assert test.now == NEW_YEAR + timedelta(minutes=69)


def test_with_raises_the_first_error_reaches_the_test(test: AppTest) -> None:
    flaky.enqueue()
    with pytest.raises(ValueError, match="not yet"):
        test.run_due(raises=True)


scheduled_app = Holdfast("redis://never.invalid:1/0")


@scheduled_app.every("20m", name="sweep")
def sweep() -> None: ...


@scheduled_app.cron("0 3 * * *", name="nightly", timezone="Europe/Berlin")
def nightly() -> None: ...


@pytest.fixture
def scheduled() -> Iterator[AppTest]:
    with in_memory(scheduled_app, now=NEW_YEAR) as test:
        yield test


def test_schedules_fire_while_time_passes(scheduled: AppTest) -> None:
    assert outcomes(scheduled.advance("1h")) == [("sweep", 1, "succeeded")] * 3
    ran = [each.type for each in scheduled.advance("1d")]
    assert (ran.count("sweep"), ran.count("nightly")) == (72, 1)


def test_while_no_worker_runs_nothing_does(scheduled: AppTest) -> None:
    scheduled.run_due()
    assert scheduled.advance("1h", worker=False) == []
    assert outcomes(scheduled.run_due()) == [("sweep", 1, "succeeded")]  # of three occurrences, the latest


@app.task(name="fresh", expires="5m")
def fresh() -> None: ...


def test_a_task_that_is_not_started_in_time_expires(test: AppTest) -> None:
    late, in_time = fresh.enqueue(), fresh.using(delay="4m", expires="10m").enqueue()
    test.advance("6m", worker=False)
    assert outcomes(test.run_due()) == [("fresh", 1, "succeeded")]
    assert (late.status().state, in_time.status().state) == (State.CANCELLED, State.SUCCEEDED)
    assert "expired" in (late.status().reason or "")


@app.task(name="slow", timeout="1m", retry=Retry(max_attempts=2, base="1s", jitter=0))
def slow(seconds: int) -> str:
    now(f"{seconds}s")
    return f"{current().time_left:g}"


@app.task(name="aslow", timeout="1m", retry=Retry(max_attempts=2, base="1s", jitter=0))
async def aslow(seconds: int) -> str:
    await anow(f"{seconds}s")
    return f"{current().time_left:g}"


def now(duration: str) -> None:
    """What the task waits for, in a test."""
    clock().advance(duration)


async def anow(duration: str) -> None:
    await clock().aadvance(duration)


def clock() -> AppTest:
    return tests[-1]


tests: list[AppTest] = []


@pytest.mark.parametrize("task", [slow, aslow])
def test_a_task_that_takes_too_long_times_out(test: AppTest, task: Any) -> None:
    tests.append(test)
    quick, over = task.enqueue(40), task.enqueue(61)
    ran = test.advance("10m")
    assert quick.result() == "20"
    assert [(each.outcome, type(each.error)) for each in ran if each.task_id == over.task_id] == [
        ("retried", TimedOut),
        ("dead_lettered", TimedOut),
    ]
    assert over.status().reason == "timed_out"
    assert over.history()[-1].outcome == "timed_out"


@app.task(name="stubborn", timeout="1m", hard_timeout="2m", retry=Retry(max_attempts=1))
def stubborn() -> str:
    with contextlib.suppress(TimedOut):
        now("90s")
    try:
        now("31s")
    except ClaimLost:
        return "ignored both"
    return "not reached"


def test_a_task_that_ignores_its_time_limit_ends_as_if_its_process_was_killed(test: AppTest) -> None:
    tests.append(test)
    handle = stubborn.enqueue()
    test.run_due()
    (run,) = handle.history()
    assert run.error is not None
    assert run.error.message == "ran longer than its hard limit of 2m; its process was killed"


@app.task(name="long")
def long() -> bool:
    now("10m")
    return not current().claim_lost


def test_the_lease_of_a_running_task_is_renewed(test: AppTest) -> None:
    tests.append(test)
    handle = long.enqueue()
    assert outcomes(test.run_due()) == [("long", 1, "succeeded")]
    assert handle.result() is True


def test_waiting_for_a_task_that_does_not_run_ends_at_once(test: AppTest) -> None:
    handle = flaky.enqueue()
    with pytest.raises(UsageError, match=r"is ready, and in this test no task runs while a caller waits: call run_due"):
        handle.result()
    with pytest.raises(ResultTimeout):
        handle.result(timeout="1h")
    with pytest.raises(UsageError, match="1 of 1 tasks have not finished, and in this test no task runs"):
        list(as_completed([handle]))
    with pytest.raises(ResultTimeout):
        list(as_completed([handle], timeout="1h"))


def test_the_log_of_a_task_is_kept(test: AppTest) -> None:
    @logging_app.task(name="talk")
    def talk() -> None:
        current().log.warning("half way")

    with in_memory(logging_app):
        handle = talk.enqueue()
        run_due(logging_app)
        assert [line.text for line in handle.log()] == ["half way"]
    assert not [each for each in logging.getLogger().handlers if type(each).__name__ == "LogKeeper"]


logging_app = Holdfast("sqlite://")


def test_signed_tasks_are_genuine_at_any_time() -> None:
    signed = Holdfast("sqlite://", signing=Keys({"1": b"k" * 32}))

    @signed.task(name="work")
    def work() -> int:
        return 1

    with in_memory(signed, now=NEW_YEAR) as test:
        test.advance("2d")
        handle = work.enqueue()
        test.run_due()
        assert handle.result() == 1


def test_run_due_runs_the_tasks_of_an_app_on_its_own_store(tmp_path: Path) -> None:
    own = Holdfast(f"sqlite:///{tmp_path}/own.db")
    seen: list[str] = []

    @own.task(name="later", queue="other")
    def later() -> None:
        seen.append("later")

    @own.task(name="work")
    def work() -> None:
        seen.append("work")
        later.enqueue()
        later.using(delay="1h").enqueue()

    work.enqueue()
    assert outcomes(run_due(own)) == [("work", 1, "succeeded"), ("later", 1, "succeeded")]
    work.enqueue()
    assert len(asyncio.run(arun_due(own))) == 2
    assert seen == ["work", "later"] * 2
    own.close()


def test_a_paused_queue_and_an_unknown_type_stay(test: AppTest) -> None:
    handle = flaky.enqueue()
    app.queues.pause("default")
    assert test.run_due() == []
    assert handle.status().state is State.READY
