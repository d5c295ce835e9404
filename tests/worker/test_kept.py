"""How long finished tasks are kept is a matter of their own app, whichever process deletes old ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Holdfast, TaskHandle
from holdfast.core.task import State
from holdfast.errors import UnknownTask
from tests.support import eventually, run_holdfast, run_worker
from tests.worker.apps.kept import make_apps

MODULE = "tests.worker.apps.kept"
DAY_MS = 86_400_000
PLAIN = {"HOLDFAST_KEYS": ""}


def is_gone(handle: TaskHandle[str]) -> bool:
    try:
        handle.status()
    except UnknownTask:
        return True
    return False


def enqueue_by_command(url: str, path: Path) -> str:
    arguments = json.dumps({"path": str(path)})
    command = ("enqueue", "long.fails_until", "--args", arguments, "--app", f"{MODULE}:long")
    ended = run_holdfast(*command, url=url, env=PLAIN)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def ended(app: Holdfast, path: Path) -> list[TaskHandle[str]]:
    """Tasks that have succeeded, by themselves or after a replay, and dead letters."""
    task_type = app.task_types[f"{app._options.queue}.fails_until"]
    there, missing = path / "there", path / "missing"
    there.touch()
    succeeded, dead, replayed = (task_type.enqueue(str(each)) for each in (there, missing, path / "later"))
    assert [handle.wait(20).state for handle in (succeeded, dead, replayed)] == [
        State.SUCCEEDED, State.DEAD_LETTERED, State.DEAD_LETTERED,
    ]  # fmt: skip
    (path / "later").touch()
    assert run_holdfast("dead", "replay", replayed.task_id, url=app.url).returncode == 0
    assert replayed.wait(20).state is State.SUCCEEDED
    return [succeeded, dead, replayed]


@pytest.fixture(autouse=True)
def _plain_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed ones are kept for two hours at least."""
    monkeypatch.setenv("HOLDFAST_KEYS", "")


@pytest.mark.long  # waits for two rounds of the pruner
def test_one_app_does_not_delete_the_tasks_of_another(url: str, tmp_path: Path) -> None:
    short, long = make_apps(url)
    with short, long, run_worker(f"{MODULE}:short", url, "--queues", "short", env=PLAIN):
        probe = short.task_types["short.fails_until"].enqueue(str(tmp_path))
        eventually(lambda: is_gone(probe), 40, "the worker of the app that keeps nothing deletes tasks")
        with run_worker(f"{MODULE}:long", url, "--queues", "long", env=PLAIN):
            kept = ended(long, tmp_path)
            by_command = long.handle(enqueue_by_command(url, tmp_path), str)
            by_command.wait(20)
            fired = eventually(lambda: long.schedules.get("firing").last_task_id, 20)
            assert long.handle(fired or "").wait(20).state is State.SUCCEEDED
        kept += [by_command, long.handle(fired or "")]
        # The others ended before these: what deletes these would have deleted them too.
        task_type = short.task_types["short.fails_until"]
        gone = [task_type.enqueue(str(each)) for each in (tmp_path, tmp_path / "missing")]
        eventually(lambda: all(map(is_gone, gone)), 60, "the app that keeps nothing keeps nothing")
        assert [is_gone(handle) for handle in kept] == [False] * len(kept)
        for handle in kept:
            policy = handle.status().policy
            assert (policy.result_ttl_ms, policy.dead_letter_ttl_ms) == (30 * DAY_MS, 365 * DAY_MS)
