"""Kills in the middle of 5,000 tasks: none is lost, and no more run twice than were running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.task import State, Task
from holdfast.stores.contract import Query
from tests.support import eventually
from tests.worker.helpers import enqueue_many, runs, working

TASKS, SLOTS = 5_000, 20


def succeeded(jobs: Holdfast) -> int:
    async def count() -> int:
        return sum(queue.states.get(State.SUCCEEDED, 0) for queue in await jobs.store.counts())

    return asyncio.run(count())


def all_tasks(jobs: Holdfast) -> list[Task]:
    async def read() -> list[Task]:
        tasks: list[Task] = []
        cursor: str | None = None
        while True:
            page = await jobs.store.find(Query(limit=1_000, cursor=cursor))
            found = await jobs.store.get([task.task_id for task in page.tasks])
            tasks += [task for task in found if task is not None]
            cursor = page.cursor
            if cursor is None:
                return tasks

    return asyncio.run(read())


def check(jobs: Holdfast, log: Path, cause: str, kills: int) -> None:
    tasks = all_tasks(jobs)
    assert Counter(task.state for task in tasks) == {State.SUCCEEDED: TASKS}
    ran = runs(log)
    assert set(ran) == {task.task_id for task in tasks}
    repeated = {task_id: count for task_id, count in ran.items() if count > 1}
    assert sum(repeated.values()) - len(repeated) <= kills * SLOTS
    for task in tasks:
        outcomes = [attempt.outcome for attempt in task.history]
        assert outcomes == [cause] * (len(outcomes) - 1) + ["succeeded"]
        assert ran[task.task_id] <= len(outcomes), "a run without a recorded cause"


@pytest.mark.parametrize("name", ["notes", pytest.param("notes_in_thread", marks=pytest.mark.long)])
def test_killed_children_lose_no_task(jobs: Holdfast, url: str, tmp_path: Path, name: str) -> None:
    log, kills = tmp_path / "runs", 3
    enqueue_many(jobs, TASKS, name, str(log), 0.005)
    with working(url, "--concurrency", str(SLOTS), "--lease", "60s") as worker:
        for kill in range(1, kills + 1):
            eventually(lambda kill=kill: succeeded(jobs) > kill * 600, 60)  # type: ignore[misc]
            os.kill(worker.children()[0], signal.SIGKILL)
            eventually(lambda: "was killed by SIGKILL" in worker.output() and worker.children(), 20)
        eventually(lambda: succeeded(jobs) == TASKS, 90)  # Long before the lease of a minute runs out.
    check(jobs, log, "worker_lost", kills)


def test_a_killed_worker_loses_no_task(jobs: Holdfast, url: str, tmp_path: Path) -> None:
    log, kills = tmp_path / "runs", 2
    enqueue_many(jobs, TASKS, "notes", str(log), 0.005)
    for kill in range(1, kills + 1):
        with working(url, "--concurrency", str(SLOTS), "--lease", "2s") as worker:
            eventually(lambda kill=kill: succeeded(jobs) > kill * 1_000, 60)  # type: ignore[misc]
            worker.kill_all()
    with working(url, "--concurrency", str(SLOTS), "--lease", "2s"):
        eventually(lambda: succeeded(jobs) == TASKS, 90)
    check(jobs, log, "lease_expired", kills)
