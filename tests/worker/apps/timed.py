"""Tasks that run into their time limits."""

from __future__ import annotations

import asyncio
import time

from holdfast import Holdfast, Retry, current
from holdfast.errors import TimedOut

TWICE = Retry(max_attempts=2, base="10ms", cap="20ms")


async def waits() -> None:
    current().log.warning("waiting")
    await asyncio.Event().wait()


def computes() -> None:
    current().log.warning("computing")
    while True:
        pass


async def cleans_up() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return f"cleaned up, cancelled: {current().cancelled}"
    return ""


def cleans_up_in_thread() -> str:
    try:
        while True:
            time.sleep(0.001)
    except TimedOut:
        return f"cleaned up, cancelled: {current().cancelled}"


def waits_for_another(task_id: str) -> None:
    app.handle(task_id).result()


def quick() -> str:
    return "done"


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s")
    for function in (waits, computes, cleans_up, cleans_up_in_thread, waits_for_another):
        made.task(name=function.__name__, retry=TWICE, timeout="300ms")(function)
    made.task(name="quick")(quick)
    return made


app = make_app()
