"""What a worker logs of its tasks: each start and end is one line under `holdfast.task`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, TaskHandle
from holdfast.core.task import State
from tests.support import WorkerProcess, eventually, run_worker
from tests.worker.helpers import enqueue, in_state

SOURCE = """
import asyncio, os, time
from holdfast import Cancel, Holdfast, Retry, Snooze, current
app = Holdfast()
twice = Retry(max_attempts=2, base="50ms")

@app.task(name="fine")
async def fine() -> None: ...

@app.task(name="publish", retry=twice)
def publish() -> None:
    raise ConnectionError("no answer from\\nredis://user:hunter2@host")

@app.task(name="apublish", retry=twice)
async def apublish() -> None:
    raise ConnectionError("no answer")

@app.task(name="slow", timeout="100ms", retry=Retry(max_attempts=1))
async def slow() -> None:
    await asyncio.sleep(60)

@app.task(name="later")
def later() -> Snooze | Cancel:
    return Snooze("50ms") if current().fencing_token < 2 else Cancel("not needed")

@app.task(name="endless")
async def endless() -> None:
    await asyncio.sleep(60)

@app.task(name="blocker")
async def blocker() -> None:
    time.sleep(2.5)

@app.task(name="parent")
async def parent() -> None:
    await (await fine.aenqueue()).aresult()

@app.task(name="sync_parent")
def sync_parent() -> None:
    fine.enqueue().result()

@app.task(name="polite")
async def polite() -> None:
    await asyncio.sleep(2.5)

@app.task(name="threaded")
def threaded() -> None:
    time.sleep(2.5)

@app.task(name="crash", retry=twice)
def crash() -> None:
    os.kill(os.getpid(), 9)

@app.task(name="stuck", hard_timeout="300ms", retry=Retry(max_attempts=1), run="process")
def stuck() -> None:
    time.sleep(60)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


@contextmanager
def shop(folder: Path, url: str, *options: str) -> Iterator[tuple[Holdfast, WorkerProcess]]:
    (folder / "shop.py").write_text(SOURCE)
    namespace: dict[str, Any] = {"__name__": "shop"}
    exec(SOURCE.replace("Holdfast()", f"Holdfast({url!r})"), namespace)
    app: Holdfast = namespace["app"]
    with app, run_worker("shop:app", url, "--cpu-processes", "1", *options, cwd=folder) as worker:
        yield app, worker


def lines(worker: WorkerProcess, handle: TaskHandle[Any]) -> list[str]:
    """The lines about a task: level and text."""
    found = re.findall(rf" (\w+) +holdfast\.task: (\w+\[{handle.task_id}\] .*)", worker.output())
    return [f"{level} {text.replace('[' + handle.task_id + ']', '[ID]')}" for level, text in found]


def until(worker: WorkerProcess, handle: TaskHandle[Any], count: int) -> list[str]:
    return eventually(lambda: (found := lines(worker, handle)) and len(found) >= count and found, 30) or []


def test_each_start_and_each_end_is_one_line(tmp_path: Path, url: str) -> None:
    with shop(tmp_path, url) as (app, worker):
        fine, publish, apublish, slow, later = (
            enqueue(app, name) for name in ("fine", "publish", "apublish", "slow", "later")
        )
        assert [re.sub(r"in .*", "in …", line) for line in until(worker, fine, 2)] == [
            "INFO fine[ID] started",
            "INFO fine[ID] succeeded in …",
        ]
        for handle, name in ((publish, "publish"), (apublish, "apublish")):
            error = "ConnectionError: no answer" + (" from redis://***@host" if name == "publish" else "")
            started, retried, again, dead = until(worker, handle, 4)
            assert (started, again) == (f"INFO {name}[ID] started", f"INFO {name}[ID] started, attempt 2/2")
            assert re.fullmatch(
                rf"WARNING {name}\[ID\] attempt 1/2 failed: {re.escape(error)} \(retry in \d+ms\)", retried
            )
            assert dead == f"ERROR {name}[ID] dead-lettered after attempt 2/2: {error}"
        assert until(worker, slow, 2)[1] == (
            "ERROR slow[ID] dead-lettered after attempt 1/1 (timed out): ran longer than its time limit of 100ms"
        )
        told = until(worker, later, 4)
        assert told[1] == "INFO later[ID] snoozed for 50ms"
        assert re.fullmatch(r"INFO later\[ID\] cancelled after \S+: not needed", told[3])
        assert worker.output().count("Traceback") == 3, "one for each dead letter, none for a retry"
        assert "hunter2" not in worker.output()
        assert not apublish.log(), "the worker's own lines are not kept with the task"


def test_cancelled_and_released_runs_are_logged(tmp_path: Path, url: str) -> None:
    with shop(tmp_path, url, "--grace", "100ms") as (app, worker):
        cancelled, released = enqueue(app, "endless"), enqueue(app, "endless")
        for handle in (cancelled, released):
            in_state(handle, State.CLAIMED)
            until(worker, handle, 1)
        cancelled.cancel("by hand")
        assert until(worker, cancelled, 2)[1].startswith("INFO endless[ID] cancelled after ")
        assert worker.stop() == 0
        assert lines(worker, released)[1].startswith("INFO endless[ID] released unfinished after ")


def test_a_lost_child_names_its_tasks_and_what_became_of_them(tmp_path: Path, url: str) -> None:
    with shop(tmp_path, url) as (app, worker):
        crash, stuck = enqueue(app, "crash"), enqueue(app, "stuck")
        told = until(worker, crash, 4)
        assert told[1] == "WARNING crash[ID] attempt 1/2 lost: child 1 was killed by SIGKILL (ready to run again)"
        assert told[3] == (
            "ERROR crash[ID] dead-lettered after attempt 2/2 (worker lost): child 1 was killed by SIGKILL"
        )
        assert until(worker, stuck, 2)[1] == (
            "ERROR stuck[ID] dead-lettered after attempt 1/1 (timed out): "
            "ran longer than its hard limit of 300ms; its process was killed"
        )


def test_a_task_that_blocks_the_event_loop_is_named_and_others_are_not(tmp_path: Path, url: str) -> None:
    with shop(tmp_path, url) as (app, worker):
        polite, threaded = enqueue(app, "polite"), enqueue(app, "threaded")
        assert (polite.result(30), threaded.result(30)) == (None, None)
        assert "blocked" not in worker.output()
        blocker = enqueue(app, "blocker")
        line = eventually(lambda: re.search("WARNING holdfast.worker: (the event loop .*)", worker.output()), 30)
        assert line is not None
        assert re.fullmatch(
            rf"the event loop was blocked for \d\.\ds by blocker\[{blocker.task_id}\] at shop.py:\d+; "
            "use def or run blocking code in a thread",
            line[1],
        )


@pytest.mark.parametrize("name", ["parent", "sync_parent"])
def test_a_parent_that_waits_for_a_child_in_the_last_slot_is_named(tmp_path: Path, url: str, name: str) -> None:
    with shop(tmp_path, url, "--concurrency", "1", "--grace", "100ms") as (app, worker):
        parent = enqueue(app, name)
        line = eventually(lambda: re.search("WARNING holdfast.worker: (.* waits for .*)", worker.output()), 30)
        assert line is not None
        assert re.match(
            rf"{name}\[{parent.task_id}\] waits for fine\[[0-9a-f]+\], which is ready, but all slots of this process "
            r"are taken \(1\) and it may wait for ever: raise --concurrency, ",
            line[1],
        )
        with run_worker("shop:app", url, cwd=tmp_path):
            assert parent.result(30) is None
        assert worker.output().count("waits for") == 1


@pytest.mark.parametrize(("detail", "logged"), [("failures", ["WARNING", "ERROR"]), ("none", [])])
def test_log_tasks_leaves_out_what_is_not_wanted(tmp_path: Path, url: str, detail: str, logged: list[str]) -> None:
    with shop(tmp_path, url, "--log-tasks", detail) as (app, worker):
        fine, publish = enqueue(app, "fine"), enqueue(app, "publish")
        in_state(fine, State.SUCCEEDED)
        in_state(publish, State.DEAD_LETTERED)
        assert worker.stop() == 0
        assert [line.split()[0] for line in lines(worker, publish)] == logged
        assert not lines(worker, fine)


def test_json_lines_have_the_fields_of_the_run_and_the_traceback(tmp_path: Path, url: str) -> None:
    with shop(tmp_path, url, "--json") as (app, worker):
        publish = enqueue(app, "publish")
        in_state(publish, State.DEAD_LETTERED)
        assert worker.stop() == 0
        records = [json.loads(line) for line in worker.output().splitlines()]
        of_task = [record for record in records if record["logger"] == "holdfast.task"]
        assert [record["outcome"] for record in of_task] == ["started", "retried", "started", "dead_lettered"]
        assert {record["task_id"] for record in of_task} == {publish.task_id}
        retried = of_task[1]
        assert (retried["task_type"], retried["queue"], retried["attempt"]) == ("publish", "default", 1)
        assert retried["duration_ms"] >= 0
        for record in (of_task[1], of_task[3]):
            assert 'raise ConnectionError("no answer from' in record["traceback"]
            assert "worker/child" not in record["traceback"]
