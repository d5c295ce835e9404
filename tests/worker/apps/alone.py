"""Types with `run="process"`, which have the main thread of a process for themselves."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable

from holdfast import Holdfast, Retry, RunningTask, TimedOut

ONCE = Retry(max_attempts=1)


def is_main() -> bool:
    """Whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()


def handles_signals() -> list[bool]:
    """Needs the main thread, as `signal.signal` does; tells whether it was it, and what it could see."""
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    return [is_main(), heard == [signal.SIGUSR1], asyncio.run(in_a_loop_of_its_own())]


async def in_a_loop_of_its_own() -> bool:
    return is_main()


def sleeps(seconds: float) -> None:
    """In one call of the kernel."""
    time.sleep(seconds)


def cleans_up(seconds: float) -> str:
    """Ends its time limit in its own way."""
    try:
        time.sleep(seconds)
    except TimedOut:
        return "cleaned up"
    return "slept"


async def in_the_loop() -> bool:
    return is_main()


def make_app(url: str | None = None, *, middleware: bool = False) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s", run="process", retry=ONCE)
    for function in (handles_signals, sleeps, cleans_up, in_the_loop):
        made.task(name=function.__name__)(function)
    if middleware:

        @made.around
        async def around(_: RunningTask, call_next: Callable[[], Awaitable[object]]) -> object:
            return await call_next()

    return made


app = make_app()
app_with_middleware = make_app(middleware=True)
