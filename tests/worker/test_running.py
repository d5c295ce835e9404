"""What becomes of tasks when a worker runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Holdfast, TaskFailed
from holdfast.core.declared import DeclaredParameter
from holdfast.core.task import Progress, State
from holdfast.stores import documents
from tests.support import eventually
from tests.worker.helpers import enqueue, enqueue_many, in_state, outcomes, working


def test_runs_coroutines_and_functions_and_keeps_their_results(jobs: Holdfast, url: str) -> None:
    with working(url):
        one, two = enqueue(jobs, "add", 2, 3), enqueue(jobs, "add_in_thread", 4, 5)
        assert (one.result(20), two.result(20)) == (5, 9)
        assert outcomes(one) == outcomes(two) == ["succeeded"]


def test_a_worker_publishes_the_policy_and_signature_of_its_types(jobs: Holdfast, url: str) -> None:
    with working(url):
        published = eventually(lambda: jobs._link.run(documents.declared_type(jobs.store, "flaky")), 20)
    assert published is not None
    assert published == jobs.task_types["flaky"].declared()
    assert published.policy.max_attempts == 3
    assert published.parameters == (
        DeclaredParameter("failures", required=True, kinds=("integer",), schema={"type": "integer"}),
    )


def test_retries_until_it_works(jobs: Holdfast, url: str) -> None:
    with working(url):
        task = enqueue(jobs, "flaky", 2)
        assert task.result(20) == 3
        assert outcomes(task) == ["failed", "failed", "succeeded"]


def test_a_task_out_of_attempts_becomes_a_dead_letter_with_its_errors(jobs: Holdfast, url: str) -> None:
    with working(url):
        task = enqueue(jobs, "hopeless")
        with pytest.raises(TaskFailed, match="never works"):
            task.result(20)
        dead = task.status()
        assert (dead.state, dead.reason, dead.attempt) == (State.DEAD_LETTERED, "max_attempts", 3)
        error = task.history()[-1].error
        assert error is not None
        assert error.type == "builtins.ValueError"
        assert "def hopeless" not in error.traceback
        assert "raise ValueError" in error.traceback
        assert "holdfast/worker" not in error.traceback


def test_system_exit_fails_the_task_and_not_the_worker(jobs: Holdfast, url: str) -> None:
    with working(url) as worker:
        children = worker.children()
        task = enqueue(jobs, "leaves")
        assert in_state(task, State.DEAD_LETTERED).attempt == 3
        assert worker.children() == children


def test_a_result_that_is_no_json_is_not_retried(jobs: Holdfast, url: str) -> None:
    with working(url):
        task = enqueue(jobs, "odd_result")
        dead = in_state(task, State.DEAD_LETTERED)
        assert (dead.reason, dead.attempt) == ("not_retryable", 1)
        error = task.history()[0].error
        assert error is not None
        assert "result" in error.message


def test_snooze_runs_again_and_uses_no_attempt(jobs: Holdfast, url: str) -> None:
    with working(url):
        task = enqueue(jobs, "snoozes")
        assert task.result(20) == 1
        assert outcomes(task) == ["snoozed", "succeeded"]


def test_a_task_can_cancel_itself(jobs: Holdfast, url: str) -> None:
    with working(url):
        cancelled = in_state(enqueue(jobs, "gives_up"), State.CANCELLED)
        assert cancelled.reason == "not needed any more"


@pytest.mark.parametrize(("name", "arguments"), [("sleeps", (60.0,)), ("waits_for_cancellation", ())])
def test_a_running_task_is_told_of_its_cancellation(
    jobs: Holdfast, url: str, name: str, arguments: tuple[float, ...]
) -> None:
    with working(url):
        task = enqueue(jobs, name, *arguments)
        in_state(task, State.CLAIMED)
        task.cancel("changed my mind")
        assert in_state(task, State.CANCELLED).reason == "changed my mind"


def test_code_that_blocks_the_event_loop_beyond_the_lease_keeps_its_claim(jobs: Holdfast, url: str) -> None:
    with working(url, "--lease", "1s"):
        task = enqueue(jobs, "blocks_the_loop", 3.0)
        assert task.result(20) == "done"
        assert outcomes(task) == ["succeeded"]


def test_progress_can_be_seen_while_the_task_runs(jobs: Holdfast, url: str) -> None:
    with working(url, "--grace", "0s"):
        task = enqueue(jobs, "reports")
        eventually(lambda: task.status().progress.done, 20)
        assert task.status().progress == Progress(done=3, total=10, note="half way")
        assert task.status().to_dict()["progress"] == {"done": 3, "total": 10, "note": "half way"}


@pytest.mark.parametrize("option", [("--log-format", "json"), ("--json",)])
def test_log_lines_can_be_json_and_carry_the_task(jobs: Holdfast, url: str, option: tuple[str, ...]) -> None:
    with working(url, *option) as worker:
        task = enqueue(jobs, "logs")
        in_state(task, State.SUCCEEDED)
        worker.stop()
        lines = [json.loads(line) for line in worker.output().splitlines()]
    (line,) = [line for line in lines if line["message"] == "hello from inside"]
    assert (line["task_id"], line["task_type"], line["attempt"]) == (task.task_id, "logs", 1)
    assert (line["level"], line["logger"]) == ("warning", "holdfast.task")


@pytest.mark.parametrize("name", ["passes_on", "passes_on_in_thread"])
def test_a_task_can_enqueue_another_one(jobs: Holdfast, url: str, name: str) -> None:
    with working(url):
        follow_up = enqueue(jobs, name).result(20)
        assert jobs.handle(follow_up, int).result(20) == 3


def test_weights_share_the_slots_between_queues(jobs: Holdfast, url: str, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    for queue in ("low", "high"):
        task_type = jobs.task_types["notes"].using(queue=queue)
        jobs.enqueue_many(task_type.prepare(str(log)) for _ in range(60))
    with working(url, "--queues", "high=5,low=1", "--concurrency", "1"):
        eventually(lambda: log.exists() and len(log.read_text().splitlines()) >= 72, 30)
    first = [line.split()[2] for line in log.read_text().splitlines()[:60]]
    assert (first.count("high"), first.count("low")) == (50, 10)


def test_several_processes_share_the_work(jobs: Holdfast, url: str) -> None:
    with working(url, "--processes", "2", "--concurrency", "5") as worker:
        seen: set[str] = set()

        def both_have_worked() -> bool:
            tasks = enqueue_many(jobs, 40, "sleeps", 0.05)
            for task in tasks:
                in_state(task, State.SUCCEEDED)
            seen.update(attempt.worker_id for task in tasks for attempt in task.history())
            return len(seen) == 2

        eventually(both_have_worked, 30, "the second process has started and takes its part")
        assert len(worker.children()) == 2
