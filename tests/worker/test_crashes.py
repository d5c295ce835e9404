"""What becomes of tasks when processes die or stand still."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from tests.support import alive, eventually
from tests.worker.helpers import enqueue, enqueue_many, in_state, outcomes, runs, working


def test_a_killed_child_loses_no_task_and_repeats_only_what_was_running(
    jobs: Holdfast, url: str, tmp_path: Path
) -> None:
    log, slots = tmp_path / "runs", 10
    tasks = enqueue_many(jobs, 500, "notes", str(log), 0.01)
    with working(url, "--concurrency", str(slots), "--lease", "60s") as worker:
        eventually(lambda: sum(runs(log).values()) > 100, 20)
        os.kill(worker.children()[0], signal.SIGKILL)
        for task in tasks:  # long before the lease runs out
            in_state(task, State.SUCCEEDED, timeout=30)
    repeated = {task_id for task_id, count in runs(log).items() if count > 1}
    assert len(runs(log)) == 500
    assert len(repeated) <= slots
    for task in tasks:
        ends = outcomes(task)
        assert ends[-1] == "succeeded"
        assert set(ends[:-1]) <= {"worker_lost"}
        if task.task_id in repeated:
            assert ends == ["worker_lost", "succeeded"]


def test_another_worker_takes_over_when_a_whole_worker_is_killed(jobs: Holdfast, url: str) -> None:
    with working(url, "--lease", "1s") as first:
        task = enqueue(jobs, "sleeps", 600.0)
        in_state(task, State.CLAIMED)
        first.kill_all()
        with working(url, "--lease", "1s", "--grace", "0s"):
            eventually(lambda: outcomes(task) == ["lease_expired"] and task.status().state is State.CLAIMED, 20)


def test_a_worker_that_stood_still_cannot_settle_what_another_one_has(jobs: Holdfast, url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with working(url, "--lease", "1s") as first:
        task = enqueue(jobs, "waits_for_file", str(gate))
        # Claimed is not enough: a child that stops before it has read the answer of its reserve has nothing to settle.
        eventually(lambda: f"[{task.task_id}] started" in first.output(), 60)
        everybody = [first.pid, *first.children()]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        gate.touch()
        # Its lease is longer than a busy machine may keep it from renewing.
        with working(url, "--lease", "60s"):
            in_state(task, State.SUCCEEDED, timeout=60)
            for pid in everybody:
                os.kill(pid, signal.SIGCONT)
            eventually(lambda: "stale_claim" in first.output(), 60)  # refused, or told in time
        *others, last = task.history()
        assert last.outcome == "succeeded"
        # The first one may have lost its claim to itself before, on a machine that kept it from renewing.
        assert {attempt.outcome for attempt in others} == {"lease_expired"}
        assert last.worker_id not in {attempt.worker_id for attempt in others}


@pytest.mark.parametrize(
    ("name", "how"), [("kills_its_process", "was killed by SIGKILL"), ("exits_its_process", "exited with code 7")]
)
def test_a_task_that_kills_its_process_is_buried_and_its_neighbours_live(
    jobs: Holdfast, url: str, name: str, how: str
) -> None:
    neighbours = enqueue_many(jobs, 5, "sleeps", 0.3)
    poison = enqueue(jobs, name)
    neighbours += enqueue_many(jobs, 5, "sleeps", 0.3)
    with working(url, "--lease", "60s"):
        dead = in_state(poison, State.DEAD_LETTERED, timeout=30)
        assert dead.reason == "worker_lost"
        assert outcomes(poison) == ["worker_lost"] * 3
        errors = [attempt.error for attempt in poison.history()]
        assert all(error is not None and how in error.message for error in errors)
        for task in neighbours:
            in_state(task, State.SUCCEEDED, timeout=30)


def test_children_leave_when_their_supervisor_is_killed_and_release_their_tasks(jobs: Holdfast, url: str) -> None:
    with working(url, "--lease", "60s") as worker:
        coroutine, thread = enqueue(jobs, "sleeps", 600.0), enqueue(jobs, "sleeps_in_thread", 600.0)
        in_state(coroutine, State.CLAIMED)
        in_state(thread, State.CLAIMED)
        (child,) = worker.children()
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda: outcomes(coroutine) == outcomes(thread) == ["released"], 20)
        assert not alive(child)
        assert coroutine.status().attempt == 0


def test_a_child_with_a_blocked_event_loop_leaves_too(jobs: Holdfast, url: str) -> None:
    with working(url, "--lease", "1s") as worker:
        in_state(enqueue(jobs, "blocks_the_loop", 600.0), State.CLAIMED)
        (child,) = worker.children()
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda: not alive(child), 20)


def test_a_child_that_stood_still_while_its_supervisor_did_not_goes_on(jobs: Holdfast, url: str) -> None:
    with working(url, "--lease", "1s") as worker:
        tasks = [enqueue(jobs, "sleeps", 2.0), enqueue(jobs, "sleeps_in_thread", 2.0)]
        for task in tasks:
            in_state(task, State.CLAIMED)
        (child,) = worker.children()
        expiry_ms = tasks[0].status().record.lease_expires_at_ms or 0
        os.kill(child, signal.SIGSTOP)
        eventually(lambda: (tasks[0].status().record.lease_expires_at_ms or 0) > expiry_ms + 2_000, 20)
        os.kill(child, signal.SIGCONT)
        for task in tasks:
            in_state(task, State.SUCCEEDED)
            assert outcomes(task) == ["succeeded"]


def test_signals_sent_to_a_child_are_left_to_its_supervisor(jobs: Holdfast, url: str) -> None:
    with working(url) as worker:
        running = enqueue(jobs, "sleeps", 0.5)
        in_state(running, State.CLAIMED)
        children = worker.children()
        os.kill(children[0], signal.SIGTERM)
        os.kill(children[0], signal.SIGINT)
        assert in_state(running, State.SUCCEEDED).attempt == 1
        assert worker.children() == children


def test_a_stopped_supervisor_makes_its_child_give_up_its_tasks(jobs: Holdfast, url: str) -> None:
    with working(url, "--lease", "1s", "--grace", "0s") as worker:
        in_state(enqueue(jobs, "sleeps", 600.0), State.CLAIMED)
        os.kill(worker.pid, signal.SIGSTOP)
        eventually(lambda: "expired without a heartbeat" in worker.output(), 20)
        os.kill(worker.pid, signal.SIGCONT)
