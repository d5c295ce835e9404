"""Cancellation, progress and logs from end to end: a real worker, the handle in Python, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Holdfast, TaskCancelled, TaskHandle
from holdfast.cli.main import main
from holdfast.core.task import State
from tests.support import WorkerProcess, eventually, run_worker
from tests.worker.apps.cancelling import make_app
from tests.worker.helpers import in_state, outcomes

#: A heartbeat comes every third of it, up to a tenth later.
LEASE_S = 3.0


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    with make_app(url) as made:
        yield made


@pytest.fixture
def worker(url: str) -> Iterator[WorkerProcess]:
    with run_worker("tests.worker.apps.cancelling:app", url, "--lease", f"{LEASE_S}s") as started:
        yield started


def holdfast(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--url", url])
    assert result.exit_code == 0, result.output
    return result.stdout


def notes(path: Path) -> dict[str, float]:
    """What the task has written, and when."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {word: float(at) for word, at in (line.split() for line in lines)}


@pytest.mark.parametrize("name", ["waits", "computes"])
@pytest.mark.usefixtures("worker")
def test_a_running_task_is_told_within_one_heartbeat_and_cleans_up(app: Holdfast, name: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    handle = app.task_types[name].enqueue(str(path))
    eventually(lambda: "begun" in notes(path), 20)
    assert handle.cancel("changed my mind") is False
    renewals = _renewals_until(handle, lambda: "told" in notes(path))
    with pytest.raises(TaskCancelled, match="changed my mind"):
        handle.result(20)
    assert set(notes(path)) == {"begun", "told", "cleaned"}
    assert renewals <= 2  # on a busy machine, another one may be under way before the run has noted that it was told
    assert outcomes(handle) == ["cancelled"]
    assert [line.text for line in handle.log()] == ["it begins"]


def _renewals_until(handle: TaskHandle[Any], condition: Callable[[], bool]) -> int:
    """How many heartbeats have renewed the claim before this came true."""
    leases: set[int | None] = set()

    def is_so() -> bool:
        leases.add(handle.status().record.lease_expires_at_ms)
        return condition()

    eventually(is_so, 20)
    return len(leases - {None}) - 1


@pytest.mark.usefixtures("worker")
def test_many_at_once_from_the_command_line_wherever_they_stand(app: Holdfast, url: str, tmp_path: Path) -> None:
    waits, computes, fails = (app.task_types[name] for name in ("waits", "computes", "fails"))
    running = [task_type.enqueue(str(tmp_path / task_type.name)) for task_type in (waits, computes)]
    scheduled = waits.using(delay="1h").enqueue(str(tmp_path / "never"))
    waiting = waits.using(queue="elsewhere").enqueue(str(tmp_path / "never"))
    retried = fails.enqueue()
    others = waits.using(queue="elsewhere", delay="1h").enqueue(str(tmp_path / "never"))
    in_state(retried, State.RETRY_PENDING)
    eventually(lambda: all((tmp_path / name).exists() for name in ("waits", "computes")), 20)
    holdfast(url, "tasks", "cancel", waiting.task_id, "--reason", "one")
    answer = holdfast(url, "tasks", "cancel", "--all", "--queue", "default", "--reason", "all", "--yes", "--json")
    assert json.loads(answer) == {"matched": 4, "cancelled": 4, "running": 2}
    for handle in (*running, scheduled, retried):
        assert in_state(handle, State.CANCELLED).reason == "all"
    assert waiting.status().reason == "one"
    assert others.status().state is State.SCHEDULED
    assert not (tmp_path / "never").exists()
    assert [outcomes(handle) for handle in (*running, scheduled, retried)] == [
        ["cancelled"],
        ["cancelled"],
        [],
        ["failed"],
    ]


@pytest.mark.usefixtures("worker")
def test_the_log_of_every_attempt_can_be_read_afterwards_and_no_unfinished_progress(app: Holdfast, url: str) -> None:
    handle = app.task_types["says"].enqueue()
    handle.result(20)
    assert handle.progress().done is None
    assert [(line.level, line.text) for line in handle.log()] == [
        ("warning", "attempt 1 begins"),
        ("warning", "attempt 2 begins"),
    ]
    lines = holdfast(url, "tasks", "log", handle.task_id).splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["warning attempt 1 begins", "warning attempt 2 begins"]
    assert "1 of 2" not in holdfast(url, "tasks", "show", handle.task_id)
