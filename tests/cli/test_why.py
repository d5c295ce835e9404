"""`why` gives one sentence for every place in which a task can stand."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.admin.why import Explanation, why
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.retry import RetryPolicy
from holdfast.core.task import Failure
from tests.cli.conftest import CommandLine


class ShiftedClock(SystemClock):
    """The machine's clock, a while later."""

    def __init__(self, by_ms: int) -> None:
        self._by_ms = by_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._by_ms


def explain(cli: CommandLine, task_id: str, later_ms: int = 0) -> Explanation:
    return cli.store(lambda store: why(store, task_id, ShiftedClock(later_ms)))


def test_waits_for_its_time(cli: CommandLine) -> None:
    cli.announce()
    (task_id,) = cli.enqueue(delay_ms=250_000)
    explanation = explain(cli, task_id)
    assert explanation.cause == "waits_for_time"
    assert explanation.text.startswith("It waits for its time, in 4m")


def test_due_but_nobody_moves_it(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue(delay_ms=1_000)
    explanation = explain(cli, task_id, later_ms=60_000)
    assert explanation.cause == "waits_for_upkeep"
    assert "no worker is running" in explanation.text


def test_behind_others(cli: CommandLine) -> None:
    cli.announce()
    *_, last = cli.enqueue(3)
    (urgent,) = cli.enqueue(priority=50)
    assert "behind 3 others in queue default" in explain(cli, last).text
    explanation = explain(cli, urgent)
    assert explanation.cause == "next"
    assert "1 worker with 0 of 10 slots busy" in explanation.text


def test_a_queue_too_long_to_count(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.admin.why._LOOK_AHEAD", 2)
    cli.announce()
    task_id, *_ = cli.enqueue(3)
    assert "one of 3 ready tasks in queue default" in explain(cli, task_id).text


def test_queue_paused(cli: CommandLine) -> None:
    cli.announce()
    (task_id,) = cli.enqueue()
    cli.ok("queues", "pause", "default")
    assert explain(cli, task_id).text.startswith("Queue default is paused")


@pytest.mark.parametrize(
    ("worker", "cause", "words"),
    [
        (None, "no_worker_for_queue", "No worker is running."),
        ({"queues": ("images",)}, "no_worker_for_queue", "No running worker serves queue default; they serve images."),
        ({"types": ("resize",)}, "no_worker_for_type", "None of the 1 worker of queue default knows the type add."),
    ],
)
def test_nobody_to_run_it(cli: CommandLine, worker: dict[str, Any] | None, cause: str, words: str) -> None:
    (task_id,) = cli.enqueue()
    if worker is not None:
        cli.announce(**worker)
    explanation = explain(cli, task_id)
    assert (explanation.cause, explanation.text) == (cause, words)


def test_running_and_then_lapsed(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.claim(lease_ms=60_000)
    explanation = explain(cli, task_id, later_ms=10_000)
    assert explanation.cause == "running"
    assert "Worker worker-1 has been running attempt 1 of 5 for 10s" in explanation.text
    assert "its lease has 50s left" in explanation.text
    assert explain(cli, task_id, later_ms=90_000).cause == "lease_expired"


def test_running_and_asked_to_stop(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.claim()
    cli.ok("tasks", "cancel", task_id, "--reason", "too late")
    explanation = explain(cli, task_id)
    assert explanation.cause == "cancelling"
    assert "too late" in explanation.text


def test_waits_for_its_next_attempt(cli: CommandLine) -> None:
    cli.announce()
    (task_id,) = cli.enqueue(policy=RetryPolicy(max_attempts=3, base_ms=30_000, jitter=0.0))
    _fail(cli)
    explanation = explain(cli, task_id)
    assert explanation.cause == "waits_for_retry"
    assert "attempt 2 of 3, in 30s, after ValueError: bad luck." in explanation.text


def test_snoozed(cli: CommandLine) -> None:
    cli.announce()
    (task_id,) = cli.enqueue()
    (task,) = cli.claim()
    cli.settle(lifecycle.snooze(task.task_id, task.token, 30_000))
    assert explain(cli, task_id).text == "It asked to run again later, and waits for its time, in 30s."


def test_succeeded(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    (task,) = cli.claim()
    cli.settle(lifecycle.ack(task.task_id, task.token))
    assert "succeeded 1m ago on attempt 1 of 5" in explain(cli, task_id, later_ms=60_000).text


def test_dead_lettered_for_each_reason(cli: CommandLine) -> None:
    (used_up,) = cli.dead_letters()
    assert "it used up 1 attempt, the last of which ended with ValueError: bad luck" in explain(cli, used_up).text
    (hopeless,) = cli.enqueue()
    _fail(cli, retryable=False)
    assert "an error that is not retried, ValueError: bad luck" in explain(cli, hopeless).text
    (lost,) = cli.enqueue(policy=RetryPolicy(max_attempts=1))
    (task,) = cli.claim()
    cli.settle(lifecycle.lose(task.task_id, task.token, "worker_lost", attempt=1, policy=task.policy))
    assert "its worker was lost on attempt 1 of 1" in explain(cli, lost).text


def test_failed_without_a_dead_letter(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue(policy=RetryPolicy(max_attempts=1, dead_letter=False))
    _fail(cli)
    assert explain(cli, task_id).cause == "failed"


def test_cancelled(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.ok("tasks", "cancel", task_id, "--reason", "too late")
    assert "ago: too late." in explain(cli, task_id).text


def test_the_command_prints_the_sentence(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    assert cli.ok("tasks", "why", task_id) == "No worker is running.\n"
    assert cli.json("tasks", "why", task_id)["cause"] == "no_worker_for_queue"


def _fail(cli: CommandLine, retryable: bool = True) -> None:
    (task,) = cli.claim()
    failure = Failure("builtins.ValueError", "bad luck")
    cli.settle(
        lifecycle.fail(
            task.task_id,
            task.token,
            failure,
            attempt=task.attempt,
            policy=task.policy,
            retryable=retryable,
            random_unit=0.0,
        )
    )
