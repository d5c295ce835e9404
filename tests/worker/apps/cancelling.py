"""Tasks to be cancelled: each writes down, in a file, that it runs, that it was told, and that it has cleaned up."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from holdfast import Holdfast, Retry, current


def note(path: str, word: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{word} {time.time():.3f}\n")


async def waits(path: str) -> None:
    current().log.warning("it begins")
    note(path, "begun")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note(path, "told")
        raise
    finally:
        note(path, "cleaned")


def computes(path: str) -> None:
    """A thread that never asks whether it should stop."""
    current().log.warning("it begins")
    note(path, "begun")
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            time.sleep(0.001)
    except BaseException:
        note(path, "told")
        raise
    finally:
        note(path, "cleaned")


async def fails() -> None:
    raise ValueError("no luck")


async def says() -> None:
    """Something about its progress, and in its log; then it fails."""
    current().progress(1, 2, f"attempt {current().attempt}")
    current().log.warning("attempt %d begins", current().attempt)
    if current().attempt == 1:
        raise ValueError("not the first time")


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url)
    for function in (waits, computes):
        made.task(name=function.__name__)(function)
    made.task(name="fails", retry=Retry(base="1h"))(fails)
    made.task(name="says", retry=Retry(base="10ms"))(says)
    return made


app = make_app()
