"""An app with middleware and a lifespan; each leaves lines in the file that HOLDFAST_TEST_NOTES names."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from holdfast import Holdfast, RunningTask, current

caller: ContextVar[str] = ContextVar("caller", default="nobody")


def note(line: str) -> None:
    """One more line."""
    path = os.environ.get("HOLDFAST_TEST_NOTES")
    if path:
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


async def outer(task: RunningTask, call_next: Callable[[], Awaitable[Any]]) -> Any:
    note(f"outer {task.type}")
    caller.set("outer")
    result = await call_next()
    return f"{result}, from outside" if isinstance(result, str) else result


async def inner(task: RunningTask, call_next: Callable[[], Awaitable[Any]]) -> Any:
    note(f"inner {task.type}")
    return await call_next()


async def lifespan() -> AsyncIterator[dict[str, int]]:
    note("opening")
    if "HOLDFAST_TEST_BROKEN" in os.environ:
        raise ConnectionError("no database")
    yield {"pid": os.getpid()}
    note("closed")


async def greets() -> str:
    return f"hello to {caller.get()}"


def greets_in_thread() -> str:
    return f"hello to {caller.get()}"


def opened_in() -> bool:
    return bool(current().state["pid"] == os.getpid())


def spins() -> None:
    while True:
        time.sleep(0.001)


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s")
    made.around(outer)
    made.around(inner)
    made.lifespan(lifespan)
    for function in (greets, greets_in_thread, opened_in):
        made.task(name=function.__name__)(function)
    made.task(name="spins", timeout="200ms")(spins)
    return made


app = make_app()
