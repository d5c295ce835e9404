"""Tasks that hold a lock, or start a program that does; `make_app` gives the same app on another store."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast import Holdfast

_PROGRAM = ["sleep", "600"]


def _locked(path: str) -> int:
    """A descriptor that holds the lock of this file; a process that inherits it holds it too."""
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _note(path: str, pid: int) -> None:
    Path(path).write_text(f"{pid}\n")


def runs_a_program(path: str) -> None:
    lock = _locked(path)
    program = subprocess.Popen(_PROGRAM, pass_fds=(lock,))
    os.close(lock)
    _note(path, program.pid)
    program.wait()


async def runs_a_program_in_loop(path: str) -> None:
    lock = _locked(path)
    program = await asyncio.create_subprocess_exec(*_PROGRAM, pass_fds=(lock,))
    os.close(lock)
    _note(path, program.pid)
    await program.wait()


def forks(path: str) -> None:
    """As multiprocessing does, by fork."""
    lock = _locked(path)
    pid = os.fork()
    if not pid:
        time.sleep(600)
        os._exit(0)
    os.close(lock)
    _note(path, pid)
    os.waitpid(pid, 0)


def leaves_a_program(path: str) -> None:
    lock = _locked(path)
    _left.append(subprocess.Popen(_PROGRAM, pass_fds=(lock,)))
    os.close(lock)
    _note(path, _left[-1].pid)


def sleeps_in_thread(path: str) -> None:
    lock = _locked(path)
    _note(path, os.getpid())
    time.sleep(600)
    os.close(lock)


async def sleeps_in_loop(path: str) -> None:
    sleeps_in_thread(path)


#: Kept, so that Python does not complain of a process that is forgotten while it runs.
_left: list[subprocess.Popen[bytes]] = []


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s")
    made.task(name="runs_a_program")(runs_a_program)
    made.task(name="runs_a_program_in_loop")(runs_a_program_in_loop)
    made.task(name="forks")(forks)
    made.task(name="leaves_a_program")(leaves_a_program)
    made.task(name="sleeps_in_thread")(sleeps_in_thread)
    made.task(name="sleeps_in_loop")(sleeps_in_loop)
    return made


app = make_app()
slow_app = make_app()


@slow_app.lifespan
async def slow_to_close() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(60)
