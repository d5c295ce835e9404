"""The app that the worker's tests run; `make_app` gives the same one on another store."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Cancel, Holdfast, Retry, Snooze, current

QUICK = Retry(max_attempts=3, base="10ms", cap="20ms")


async def add(a: int, b: int) -> int:
    return a + b


def add_in_thread(a: int, b: int) -> int:
    return a + b


def who() -> str:
    return current().worker_id


async def flaky(failures: int) -> int:
    if current().attempt <= failures:
        raise RuntimeError(f"attempt {current().attempt} fails")
    return current().attempt


def hopeless() -> None:
    raise ValueError("never works")


async def leaves() -> None:
    raise SystemExit(3)


async def odd_result() -> Any:
    return object()


async def snoozes() -> int:
    if current().fencing_token == 1:
        return Snooze("10ms")  # type: ignore[return-value]
    return current().attempt


async def gives_up() -> None:
    raise Cancel("not needed any more")


async def sleeps(seconds: float) -> None:
    await asyncio.sleep(seconds)


def sleeps_in_thread(seconds: float) -> None:
    time.sleep(seconds)


def waits_for_cancellation() -> None:
    while True:
        current().raise_if_cancelled()
        time.sleep(0.01)


async def blocks_the_loop(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251  (that is the point)
    return "done"


async def reports() -> None:
    current().progress(3, 10, "half way")
    await asyncio.sleep(60)


async def logs() -> None:
    current().log.warning("hello from %s", "inside")


async def passes_on() -> str:
    return (await app.task_types["add"].aenqueue(1, 2)).task_id


def passes_on_in_thread() -> str:
    return app.task_types["add"].enqueue(1, 2).task_id


async def notes(path: str, pause: float = 0.0) -> str:
    """One line a run, written at its start."""
    _note(path)
    await asyncio.sleep(pause)
    return current().task_id


async def measures(text: str) -> int:
    return len(text)


async def waits_for_file(path: str) -> None:
    while not Path(path).exists():  # noqa: ASYNC110  (the test makes it)
        await asyncio.sleep(0.02)


def notes_in_thread(path: str, pause: float = 0.0) -> str:
    _note(path)
    time.sleep(pause)
    return current().task_id


def _note(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{current().task_id} {current().attempt} {current().queue}\n")


async def kills_its_process(pause: float = 0.0) -> None:
    await asyncio.sleep(pause)
    os.kill(os.getpid(), signal.SIGKILL)


def exits_its_process() -> None:
    os._exit(7)


_PLAIN: tuple[Callable[..., Any], ...] = (
    add, add_in_thread, who, snoozes, gives_up, sleeps, sleeps_in_thread, waits_for_cancellation, blocks_the_loop,
    reports, logs, passes_on, passes_on_in_thread, notes, measures, waits_for_file, notes_in_thread,
)  # fmt: skip
_RETRIED: tuple[Callable[..., Any], ...] = (
    flaky, hopeless, leaves, odd_result, kills_its_process, exits_its_process,
)  # fmt: skip


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s")
    for function in _PLAIN:
        made.task(name=function.__name__)(function)
    for function in _RETRIED:
        made.task(name=function.__name__, retry=QUICK)(function)
    return made


app = make_app()
