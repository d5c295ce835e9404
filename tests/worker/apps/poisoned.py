"""The poison tasks of the chaos runs, and plain ones beside them; `make_app` gives the same app on another store."""

from __future__ import annotations

import time

from chaos.poison import POISONS, QUICK

from holdfast import Holdfast, Retry, Snooze, current

#: Enough for all that take the process of their neighbours along.
PATIENT = Retry(max_attempts=20, base="10ms", cap="20ms")


async def add(a: int, b: int) -> int:
    return a + b


def add_in_thread(a: int, b: int) -> int:
    return a + b


def sleeps_in_thread(seconds: float) -> None:
    time.sleep(seconds)


def snoozes(times: int) -> int:
    """Comes back at once this many times before it ends."""
    if current().fencing_token <= times:
        raise Snooze(0)
    return current().fencing_token


class Blocking(Exception):
    """Asked for its text, it blocks the caller."""

    def __str__(self) -> str:
        time.sleep(600)
        return ""


async def blocks_the_loop_when_described() -> None:
    raise Blocking


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s")
    for poison in POISONS:
        made.task(name=poison.name, retry=QUICK, **poison.options)(poison.function)
    for function in (add, add_in_thread, sleeps_in_thread, snoozes):
        made.task(name=function.__name__, retry=PATIENT)(function)
    made.task(name="blocks_the_loop_when_described", retry=Retry(max_attempts=1))(blocks_the_loop_when_described)
    return made


app = make_app()
