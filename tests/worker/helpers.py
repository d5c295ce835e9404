"""Short words for what the worker's tests do often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import Holdfast, TaskHandle
from holdfast.core.task import State, Task
from tests.support import WorkerProcess, eventually, run_worker

APP = "tests.worker.apps.jobs:app"


def enqueue(jobs: Holdfast, name: str, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
    """Records one task of the tests' app."""
    return jobs.task_types[name].enqueue(*args, **kwargs)


def enqueue_many(jobs: Holdfast, count: int, name: str, *args: Any) -> list[TaskHandle[Any]]:
    """Records this many equal tasks."""
    task_type = jobs.task_types[name]
    return jobs.enqueue_many(task_type.prepare(*args) for _ in range(count))


@contextmanager
def working(url: str, *options: str) -> Iterator[WorkerProcess]:
    """A worker of the tests' app that has told of its start."""
    with run_worker(APP, url, *options) as worker:
        eventually(lambda: "task types:" in worker.output() or worker.process.poll() is not None, 20)
        yield worker


def in_state(handle: TaskHandle[Any], *states: State, timeout: float = 20) -> Task:
    """The task, as soon as it stands in one of these states."""
    return eventually(
        lambda: (task := handle.status().record).state in states and task, timeout, f"{handle} in {states}"
    ) or (handle.status().record)


def outcomes(handle: TaskHandle[Any]) -> list[str]:
    """How its runs ended, the first one first."""
    return [attempt.outcome for attempt in handle.history()]


def runs(path: Path) -> Counter[str]:
    """How often each task wrote its line."""
    return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()
