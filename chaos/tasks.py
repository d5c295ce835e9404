"""The app whose tasks leave a trace: each run appends one line to a file before it does anything else."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from typing import Final

from holdfast import Holdfast, Retry
from holdfast.producer.task_type import AsyncTaskType
from holdfast.worker.context import current_run

#: Names the file in the environment of a worker.
TRACE_VARIABLE: Final = "CHAOS_TRACE"
#: What a task does: most end at once, some take a while, some fail at first, some wait for their time.
KINDS: Final = ("plain", "slow", "flaky", "delayed")
DELAY_MS: Final = 500
QUEUES: Final = ("chaos-a", "chaos-b")
_SLOW_SECONDS = 0.3
#: Every fault may cost an attempt; running out of them is not what is tested here.
_PATIENT = Retry(max_attempts=500, base="100ms", cap="500ms")


class FailsAtFirst(Exception):
    """Raised by the first attempt of a flaky task."""


async def work(number: int, kind: str) -> int:
    """Leaves its trace and returns the number of its claim, so that the result tells whose it is."""
    task = current_run.get().task
    _leave_trace(f"{time.time():.6f} {task.task_id} {task.token} {task.attempt} {os.getpid()} {number}\n")
    if kind == "slow":
        await asyncio.sleep(_SLOW_SECONDS)
    if kind == "flaky" and task.attempt == 1:
        raise FailsAtFirst(f"number {number}")
    return int(task.token.split(".")[1])


def _leave_trace(line: str) -> None:
    # One write to a file opened for appending is one whole line, whoever else writes; it outlives the process.
    os.write(_trace_file(), line.encode())


@cache
def _trace_file() -> int:
    return os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def make_app(url: str | None = None) -> tuple[Holdfast, AsyncTaskType[[int, str], int]]:
    """The app on this store, and its task type."""
    made = Holdfast(url)
    return made, made.task(name="work", retry=_PATIENT)(work)


app, _ = make_app()
