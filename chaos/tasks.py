"""The app whose tasks leave a trace: each run appends one line to a file before it does anything else."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from chaos.poison import POISONS, QUICK
from holdfast import Holdfast, Retry
from holdfast.producer.task_type import AsyncTaskType, TaskType
from holdfast.worker.child.context import current_run

#: Names the file in the environment of a worker.
TRACE_VARIABLE: Final = "CHAOS_TRACE"
DELAY_MS: Final = 500
#: A task of the kind "later" must not start before a run is over.
LATER_MS: Final = 30 * 60 * 1_000
#: The queues of the load; the stale settler takes tasks from them.
QUEUES: Final = ("chaos-a", "chaos-b")
#: A queue of which only workers take.
QUIET_QUEUE: Final = "chaos-c"
#: Payload of a large task: just below the limit.
LARGE_BYTES: Final = 250_000
_SLOW_SECONDS = 0.3
#: How long tasks wait for each other that are to run at the same time.
TOGETHER_SECONDS: Final = 15.0
_FORKS: Final = 2
_FORK_SECONDS: Final = 60.0
#: Every fault may cost an attempt; running out of them is not what is tested here.
_PATIENT = Retry(max_attempts=500, base="100ms", cap="500ms")


class FailsAtFirst(Exception):
    """Raised by the first attempt of a flaky task."""


async def work(number: int, kind: str) -> int:
    """What a task does: most end at once, some take a while, some fail at first; returns the number of its claim."""
    claim = begin(number)
    if kind == "slow":
        await asyncio.sleep(_SLOW_SECONDS)
    if kind == "flaky" and current_run.get().task.attempt == 1:
        raise FailsAtFirst(f"number {number}")
    return claim


async def carry(number: int, ballast: str) -> int:
    """A task with a large payload."""
    assert len(ballast) == LARGE_BYTES, len(ballast)  # noqa: S101
    return begin(number)


async def neighbour(number: int) -> int:
    """Runs beside poison for a while, and has no attempt to spare."""
    claim = begin(number)
    await asyncio.sleep(_SLOW_SECONDS)
    return claim


async def together(number: int, path: str, count: int) -> int:
    """Ends when this many of its kind run at the same time, each on a slot of its own."""
    claim = begin(number)
    _arrive(path)
    deadline = time.monotonic() + TOGETHER_SECONDS
    while Path(path).stat().st_size < count and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return claim


def _arrive(path: str) -> None:
    with Path(path).open("ab") as meeting:
        meeting.write(b".")


def forks(number: int, path: str, first: int, count: int) -> int:
    """Forks processes that use the worker's app to enqueue, as a pool inside of a task does."""
    from chaos.forking import send_from_fork

    claim = begin(number)
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=send_from_fork, args=(app, path, first + each * count, count)) for each in range(_FORKS)
    ]
    for child in children:
        child.start()
    deadline = time.monotonic() + _FORK_SECONDS
    for child in children:
        # Not by one `join`: it returns without an exit code if another thread, which starts a process of its own
        # at that moment, has collected this one (CPython's `multiprocessing.process._cleanup`).
        while child.exitcode is None and time.monotonic() < deadline:
            child.join(0.1)
        if child.exitcode != 0:
            child.kill()
            raise RuntimeError(f"a forked process ended with {child.exitcode}")
    return claim


def begin(number: int) -> int:
    """Leaves the trace of this run; returns the number of its claim, so that the result tells whose it is."""
    task = current_run.get().task
    # One write to a file opened for appending is one whole line, also beside other writers; it outlives the process.
    line = f"{time.monotonic():.6f} {task.task_id} {task.token} {task.attempt} {os.getpid()} {number}\n"
    os.write(_trace_file(), line.encode())
    return int(task.token.split(".")[1])


@cache
def _trace_file() -> int:
    return os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def _traced(function: Callable[..., Any]) -> Callable[[int], Any]:
    if inspect.iscoroutinefunction(function):

        async def run_async(number: int) -> Any:
            begin(number)
            return await function()

        return run_async

    def run(number: int) -> Any:
        begin(number)
        return function()

    return run


def make_app(url: str | None = None) -> tuple[Holdfast, AsyncTaskType[[int, str], int]]:
    """The app on this store, and the task type of the load."""
    made = Holdfast(url)
    made.task(name="carry")(carry)
    made.task(name="neighbour", retry=QUICK)(neighbour)
    made.task(name="together", retry=_PATIENT)(together)
    made.task(name="forks", retry=_PATIENT)(forks)
    for poison in POISONS:
        made.task(name=poison.name, **{"retry": QUICK, **poison.options})(_traced(poison.function))
    return made, made.task(name="work", retry=_PATIENT)(work)


def type_of(app: Holdfast, kind: str) -> TaskType[..., Any]:
    """The task type of which orders of this kind are."""
    return app.task_types[kind if kind in app.task_types else "work"]


app, _ = make_app()
