"""`why` gives one sentence for every place in which a task can stand, on every kind of store."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.admin.why import Explanation, why
from holdfast.core import lifecycle
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Failure, Progress
from tests.cli.conftest import CommandLine, ShiftedClock, failed


@pytest.fixture
def cli(any_cli: CommandLine) -> CommandLine:
    return any_cli


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
    assert explanation.cause == "waits_for_maintenance"
    assert "no worker is running" in explanation.text


def test_behind_others(cli: CommandLine) -> None:
    cli.announce()
    *_, last = cli.enqueue(3)
    (urgent,) = cli.enqueue(priority=50)
    assert "behind 3 others in queue default" in explain(cli, last).text
    explanation = explain(cli, urgent)
    assert explanation.cause == "next"
    assert "1 worker with 0 of 10 slots busy" in explanation.text


def test_behind_others_by_the_order_of_the_queue(cli: CommandLine) -> None:
    cli.announce()
    (plain,) = cli.enqueue()
    (urgent,) = cli.enqueue(priority=1)
    assert explain(cli, urgent).cause == "next"
    cli.ok("queues", "order", "default", "aged", "--step", "1ms")
    assert explain(cli, plain).cause == "next"
    assert "behind 1 other task" in explain(cli, urgent).text
    cli.ok("queues", "order", "default", "strict")
    assert explain(cli, urgent).cause == "next"
    assert "behind 1 other task" in explain(cli, plain, later_ms=3_600_000).text
    assert [task.task_id for task in cli.claim(2)] == [urgent, plain]


def test_slots_that_were_taken_since_the_last_heartbeat_are_busy(cli: CommandLine) -> None:
    """Mistake 37: a task waits for another one in the last slot, while the worker's heartbeat still tells of none."""
    cli.announce(concurrency=1)
    running, waiting = cli.enqueue(2)
    assert [task.task_id for task in cli.claim()] == [running]
    explanation = explain(cli, waiting, later_ms=4_000)
    assert "served by 1 worker with 1 of 1 slot busy. The longest run is add[" in explanation.text
    assert re.search(rf"\[{running}\], for 4(\.\d)?s; if it waits for this task, add slots\.$", explanation.text)


def test_no_run_is_named_while_a_slot_is_free(cli: CommandLine) -> None:
    cli.announce(concurrency=2)
    _, waiting = cli.enqueue(2)
    cli.claim()
    assert explain(cli, waiting).text.endswith("with 1 of 2 slots busy.")


def test_several_workers_that_do_not_know_the_type_are_counted(cli: CommandLine) -> None:
    for name in ("w1", "w2"):
        cli.announce(worker_id=name, types=("resize",))
    (task_id,) = cli.enqueue()
    assert explain(cli, task_id).text == "None of the 2 workers of queue default knows the type add."


def test_tasks_for_which_there_is_no_worker_are_in_nobodys_way(cli: CommandLine) -> None:
    cli.announce()
    cli.enqueue(3, type="unknown")
    (known,) = cli.enqueue()
    assert explain(cli, known).cause == "next"


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
        (None, "no_worker_for_queue", "No worker is running for queue default."),
        ({"status": "draining"}, "no_worker_for_queue", "No worker is running for queue default."),
        ({"queues": ("images",)}, "no_worker_for_queue", "No running worker serves queue default; they serve images."),
        ({"types": ("resize",)}, "no_worker_for_type", "The only worker of queue default does not know the type add."),
    ],
)
def test_nobody_to_run_it(cli: CommandLine, worker: dict[str, Any] | None, cause: str, words: str) -> None:
    (task_id,) = cli.enqueue()
    if worker is not None:
        cli.announce(**worker)
    explanation = explain(cli, task_id)
    assert (explanation.cause, explanation.text) == (cause, words)


def test_running_and_then_expired(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.claim(lease_ms=60_000)
    explanation = explain(cli, task_id, later_ms=10_000)
    assert explanation.cause == "running"
    assert "Worker worker-1 has been running attempt 1 of 5 for 10s" in explanation.text
    assert "its lease has 50s left" in explanation.text
    assert explain(cli, task_id, later_ms=90_000).cause == "lease_expired"


def test_a_task_that_has_to_be_started_in_time(cli: CommandLine) -> None:
    cli.announce()
    policy = RunPolicy(expires_ms=600_000)
    for options in ({}, {"delay_ms": 300_000}, {"queue": "lonely"}):
        (task_id,) = cli.enqueue(policy=policy, **options)
        assert "If it is not started within 9m" in explain(cli, task_id, later_ms=10_000).text
    (task_id,) = cli.enqueue(policy=policy, queue="lonely")
    assert "should have been started 1m" in explain(cli, task_id, later_ms=661_000).text
    cli.claim(2, queue="lonely")
    assert "started within" not in explain(cli, task_id, later_ms=10_000).text


def test_expired(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue(policy=RunPolicy(expires_ms=5_000))
    cli.settle(lifecycle.expire(task_id, "expired: not started in time"))
    explanation = explain(cli, task_id, later_ms=60_000)
    assert explanation.cause == "expired"
    assert explanation.text == "It expired 1m ago: it was not started within 5s of its enqueue."


def test_running_with_progress_and_a_time_limit(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue(policy=RunPolicy(timeout_ms=30_000, hard_timeout_ms=45_000))
    (task,) = cli.claim()
    cli.tell(task, Progress(done=3, total=10, note="half way"))
    text = explain(cli, task_id, later_ms=10_000).text
    assert re.search(r"has been running attempt 1 of 5 for 1\ds \(3 of 10, half way\); its lease has ", text)
    assert re.search(r" left, its time limit ends in \d+s\.$", text)
    text = explain(cli, task_id, later_ms=40_000).text
    assert re.search(r" left, its time limit passed 1\ds ago, its process is killed in [\d.]+s\.$", text)


def test_out_of_time(cli: CommandLine) -> None:
    cli.announce()
    (task_id,) = cli.enqueue(policy=RunPolicy(max_attempts=2, timeout_ms=30_000, base_ms=30_000, jitter=0.0))
    _time_out(cli)
    explanation = explain(cli, task_id)
    assert explanation.cause == "waits_for_retry"
    assert "attempt 2 of 2, in 30s, after TimedOut: too slow." in explanation.text
    (once,) = cli.enqueue(policy=RunPolicy(max_attempts=1, hard_timeout_ms=1_000))
    _time_out(cli)
    explanation = explain(cli, once)
    assert explanation.cause == "timed_out"
    assert "attempt 1 of 1, the last one, ended with TimedOut: too slow" in explanation.text


def test_running_and_asked_to_stop(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.claim()
    cli.ok("tasks", "cancel", task_id, "--reason", "too late")
    explanation = explain(cli, task_id)
    assert explanation.cause == "cancelling"
    assert "too late" in explanation.text


def test_waits_for_its_next_attempt(cli: CommandLine) -> None:
    cli.announce()
    (task_id,) = cli.enqueue(policy=RunPolicy(max_attempts=3, base_ms=30_000, jitter=0.0))
    _fail(cli)
    explanation = explain(cli, task_id)
    assert explanation.cause == "waits_for_retry"
    assert re.search(r"attempt 2 of 3, in \d+s, after ValueError: bad luck\.", explanation.text)


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
    (lost,) = cli.enqueue(policy=RunPolicy(max_attempts=1))
    (task,) = cli.claim()
    cli.settle(lifecycle.lose(task.task_id, task.token, "worker_lost", attempt=1, policy=task.policy))
    assert "its worker was lost on attempt 1 of 1" in explain(cli, lost).text
    assert [explain(cli, task_id).cause for task_id in (used_up, hopeless, lost)] == [
        "dead_lettered",
        "dead_lettered",
        "worker_lost",
    ]


def test_failed_without_a_dead_letter(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue(policy=RunPolicy(max_attempts=1, dead_letter=False))
    _fail(cli)
    assert explain(cli, task_id).cause == "failed"


def test_cancelled(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.ok("tasks", "cancel", task_id, "--reason", "too late")
    assert "ago: too late." in explain(cli, task_id).text


def test_the_command_prints_the_sentence(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    assert cli.ok("tasks", "why", task_id) == "No worker is running for queue default.\n"
    assert cli.json("tasks", "why", task_id)["cause"] == "no_worker_for_queue"


def _fail(cli: CommandLine, retryable: bool = True) -> None:
    (task,) = cli.claim()
    cli.settle(failed(task, Failure("builtins.ValueError", "bad luck"), retryable=retryable))


def _time_out(cli: CommandLine) -> None:
    (task,) = cli.claim()
    late = Failure("holdfast.errors.TimedOut", "too slow")
    cli.settle(
        lifecycle.time_out(task.task_id, task.token, late, attempt=task.attempt, policy=task.policy, random_unit=0.0)
    )
