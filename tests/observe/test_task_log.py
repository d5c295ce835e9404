"""The sampling of log lines about runs, and records for other handlers than ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from holdfast.core import lifecycle
from holdfast.core.retry import Retry, RunPolicy
from holdfast.core.task import Claimed
from holdfast.observe import task_log
from holdfast.observe.task_log import (
    ATTEMPTS_HEADER,
    MAX_DEAD_LETTERS_LOGGED_PER_S,
    MAX_FAILURES_LOGGED_PER_S,
    MAX_RUNS_LOGGED_PER_S,
    TaskLog,
    task_logger,
)
from holdfast.worker.child.execute import run_function
from holdfast.worker.child.run import Run, RunContext
from tests.worker.rig import claimed, run_of

#: Five attempts, none of them after an exception, as the Celery layer has it for lost processes.
_ONCE = Retry(max_attempts=5, retry_on=("no.Exception",)).policy()


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def logged() -> Iterator[Records]:
    handler, level = Records(), task_logger.level
    task_logger.addHandler(handler)
    task_logger.setLevel(logging.INFO)
    yield handler
    task_logger.removeHandler(handler)
    task_logger.setLevel(level)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nanoseconds, to be set."""
    now = [10**12]
    monkeypatch.setattr(task_log, "monotonic_ns", lambda: now[0])
    return now


def failed(function: Callable[[], Any], task: Claimed | None = None) -> tuple[Run, lifecycle.Change]:
    context = RunContext(store=None, loop=None, keeps_errors=True)  # type: ignore[arg-type]  # a `def` needs neither
    run = run_of(function, task, context=context)
    change = run_function(run)
    assert change is not None
    return run, change


def fall() -> None:
    raise ValueError("bad luck")


@pytest.mark.parametrize(
    ("attempt", "header", "said"),
    [
        (2, "2", "2/2 (max_retries)"),
        (1, "2", "1/2 (not retryable)"),
        (3, "2", "3/5 (not retryable)"),
        (2, None, "2/5 (not retryable)"),
        (2, "many", "2/5 (not retryable)"),
    ],
)
def test_a_task_may_count_fewer_attempts_than_its_policy(
    logged: Records, attempt: int, header: str | None, said: str
) -> None:
    task = claimed(attempt=attempt, policy=_ONCE)
    if header is not None:
        task = msgspec.structs.replace(task, headers={**task.headers, ATTEMPTS_HEADER: header})
    run, change = failed(fall, task)
    TaskLog("all").ended(run, change)
    assert logged.texts()[-1].endswith(f"dead-lettered after attempt {said}: ValueError: bad luck")


def test_a_second_has_a_bounded_number_of_lines_and_the_rest_is_counted(logged: Records, clock: list[int]) -> None:
    log = TaskLog("all")
    batch = [claimed() for _ in range(30)]
    assert [log.started(batch) for _ in range(3)] == [30, MAX_RUNS_LOGGED_PER_S - 30, 0]
    said = f"more than {MAX_RUNS_LOGGED_PER_S} runs a second: a sample is logged from here on, the others are counted"
    assert logged.texts().count(f"{said} every 10s") == 1, "or a newcomer thinks that the others are lost"
    clock[0] += 10**9
    assert log.started(batch) == 30
    assert len(logged.records) == MAX_RUNS_LOGGED_PER_S + 1 + 30
    log.summarize()
    assert logged.texts()[-1] == (
        f"{90 - MAX_RUNS_LOGGED_PER_S} more runs since the last such line; "
        f"a process logs at most {MAX_RUNS_LOGGED_PER_S} a second"
    )
    count = len(logged.records)
    log.summarize()
    assert len(logged.records) == count, "there is nothing new to say"
    clock[0] += 10**9
    log.started(batch + batch)
    assert logged.texts().count(f"{said} every 10s") == 2, "the next burst is another one"


def test_failures_are_bounded_by_themselves(logged: Records, clock: list[int]) -> None:
    log = TaskLog("failures")
    assert log.started([claimed()]) == 0
    for _ in range(MAX_FAILURES_LOGGED_PER_S + 7):
        log.ended(*failed(fall))
    assert [record.levelname for record in logged.records] == ["WARNING"] * (MAX_FAILURES_LOGGED_PER_S + 1)
    assert logged.texts()[-1].startswith("more than 50 failed attempts a second: a sample is logged from here on")
    log.summarize()
    assert logged.texts()[-1].startswith("7 more failed attempts since the last such line")


def test_retries_do_not_use_up_the_lines_of_dead_letters(logged: Records, clock: list[int]) -> None:
    """A dead letter has one line; without it, nobody learns of it."""
    log = TaskLog("failures")
    for _ in range(MAX_FAILURES_LOGGED_PER_S + 7):
        log.ended(*failed(fall))
    last = claimed(policy=RunPolicy(max_attempts=1))
    for _ in range(MAX_DEAD_LETTERS_LOGGED_PER_S + 3):
        log.ended(*failed(fall, last))
    levels = [record.levelname for record in logged.records]
    assert levels.count("ERROR") == MAX_DEAD_LETTERS_LOGGED_PER_S + 1
    log.summarize()
    assert logged.texts()[-1].startswith("3 more dead letters and final failures since the last such line")


def test_a_run_whose_start_was_not_logged_is_not_logged_when_it_is_snoozed_beyond_the_bound(
    logged: Records, clock: list[int]
) -> None:
    log = TaskLog("all")
    log.started([claimed() for _ in range(MAX_RUNS_LOGGED_PER_S)])
    run = run_of(fall)
    log.ended(run, lifecycle.snooze(run.task.task_id, run.task.token, 10))
    assert "snoozed" not in str(logged.texts())
    run.logged = True
    log.ended(run, lifecycle.snooze(run.task.task_id, run.task.token, 10))
    assert logged.texts()[-1].endswith("snoozed for 10ms")


def test_other_handlers_get_the_exception_and_fields_and_the_run_lets_go_of_it(logged: Records) -> None:
    log = TaskLog("failures")
    run, change = failed(fall)
    log.ended(run, change)
    (record,) = logged.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert (record.__dict__["task_id"], record.__dict__["outcome"]) == (run.task.task_id, "retried")
    assert logging.Formatter().format(record).endswith("ValueError: bad luck")
    assert "worker/child" not in (record.exc_text or "")
    assert run.error is None, "a cycle would keep all that the task had in hand until the next collection"


def test_a_handler_that_fails_does_not_keep_the_run_from_ending(
    logged: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(record: logging.LogRecord) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(logged, "emit", fail)
    run, change = failed(fall)
    TaskLog("all").ended(run, change)
    assert run.error is None
    assert "its end could not be logged: SystemExit" in caplog.text
