"""Copies of a child that its tasks fork: they end where the task's code ends, and never act as the child."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from functools import partial
from threading import get_ident
from typing import NoReturn

from holdfast.runtime.forks import generation
from holdfast.worker.child.run import Run

_log = logging.getLogger("holdfast.worker")


def end_copy(run: Run, error: BaseException | None = None) -> None:
    """Ends this process if the run has forked it: its code has returned, or raised this.

    Else it would go on as a second child on the same claims, sockets and event loop.
    """
    if run.context is not None and run.context.process[0] != generation():
        _end_process(_exit_code(run, error))


def end_copies_of(loop: asyncio.AbstractEventLoop) -> None:
    """Ends every copy of this event loop as soon as the task that forked it waits; its thread calls this."""
    os.register_at_fork(after_in_child=partial(_end_loop, loop, get_ident()))


def _end_loop(loop: asyncio.AbstractEventLoop, thread: int) -> None:
    if get_ident() == thread and not loop.is_closed():
        loop.call_soon(_end_waiting)


def _end_waiting() -> NoReturn:
    _log.error("a process that an async task has forked waits for an event loop, which it does not have; it ends")
    _end_process(1)


def _exit_code(run: Run, error: BaseException | None) -> int:
    """As Python's own at the end of a program."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        _log.error("task %s: a process that it has forked ends with an error", run.task.task_id, exc_info=error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    with contextlib.suppress(Exception):
        print(error.code, file=sys.stderr)
    return 1


def _end_process(code: int) -> NoReturn:
    try:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # there may be none, or it is closed
                stream.flush()
    finally:
        os._exit(code)
