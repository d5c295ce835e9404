"""The tasks that are measured. The worker gets them from `app`, whose store is named by HOLDFAST_URL."""

from __future__ import annotations

import time
from typing import NamedTuple

from holdfast.app import Holdfast
from holdfast.producer.task_type import TaskType

REFERENCE = "holdfast.bench.tasks:app"


async def noop(number: int, text: str) -> int:
    """Does nothing, with two arguments and a result, so that what is measured is the queue."""
    return number + len(text)


async def started() -> float:
    """When its run began, by the clock that the bench reads too."""
    return time.time()


class BenchTasks(NamedTuple):
    """The task types on one app."""

    noop: TaskType[[int, str], int]
    started: TaskType[[], float]


def declare(app: Holdfast) -> BenchTasks:
    """The task types of the bench on this app."""
    return BenchTasks(app.task(name="bench.noop")(noop), app.task(name="bench.started")(started))


app = Holdfast()
declare(app)
