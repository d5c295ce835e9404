"""Tasks that hang, hog, leak and ignore; `make_app` gives the same app on another store."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Retry, current

ONCE = Retry(max_attempts=1)
QUICK = Retry(max_attempts=2, base="10ms", cap="20ms")

#: Keeps the GIL while it sleeps, as extensions in C do that never give it up.
_C = ctypes.PyDLL(None)
_leaked: list[bytearray] = []


def spins() -> None:
    while True:
        pass


async def spins_in_loop() -> None:
    while True:
        pass


def starts_another(path: str) -> None:
    """Waits for a process that it has started."""
    child = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(str(child.pid))
    child.wait()


async def sleeps(seconds: float) -> None:
    await asyncio.sleep(seconds)


def sleeps_in_thread(seconds: float) -> None:
    time.sleep(seconds)


def sleeps_in_c(seconds: float) -> None:
    """In pieces: one call of usleep is for less than a second."""
    for _ in range(round(seconds * 10)):
        _C.usleep(100_000)


async def sleeps_in_c_in_loop(seconds: float) -> None:
    sleeps_in_c(seconds)


def ignores_everything() -> None:
    """Whatever is raised in it, it goes on."""
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.05)


async def ignores_everything_in_loop() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0.05)


def leaks(megabytes: int) -> int:
    """Uses so much more memory, for ever."""
    _leaked.append(_touched(megabytes))
    return os.getpid()


def eats(megabytes: int) -> int:
    """Uses so much memory, bit by bit, until it ends."""
    return len([_touched(1) for _ in range(megabytes)])


def _touched(megabytes: int) -> bytearray:
    return bytearray(b"x") * (megabytes * 2**20)


def where(path: str, pause: float = 0.0) -> int:
    """The pid in which it runs; one line at its start and one at its end."""
    _note(path, "start")
    time.sleep(pause)
    _note(path, "end")
    return os.getpid()


def _note(path: str, what: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{what} {os.getpid()} {current().task_id}\n")


_PLAIN: tuple[Callable[..., Any], ...] = (
    sleeps, sleeps_in_thread, sleeps_in_c, sleeps_in_c_in_loop, leaks, where,
)  # fmt: skip
_STUBBORN: tuple[Callable[..., Any], ...] = (ignores_everything, ignores_everything_in_loop)
_ENDLESS: tuple[Callable[..., Any], ...] = (spins, spins_in_loop, starts_another)


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s")
    for function in _PLAIN:
        made.task(name=function.__name__)(function)
    for function in _STUBBORN:
        made.task(name=function.__name__, retry=QUICK)(function)
    for function in _ENDLESS:
        made.task(name=function.__name__, retry=ONCE, hard_timeout="1s")(function)
    made.task(name="eats", retry=ONCE)(eats)
    return made


def make_cpu_app(url: str | None = None) -> Holdfast:
    """The same, and types that run one at a time in processes of their own."""
    made = make_app(url)
    made.task(name="where_alone", run="process")(where)
    made.task(name="spins_alone", run="process", retry=QUICK)(spins)
    made.task(name="ignores_alone", run="process", retry=QUICK)(ignores_everything)
    made.task(name="sleeps_in_c_alone", run="process")(sleeps_in_c)
    return made


app = make_app()
cpu_app = make_cpu_app()
