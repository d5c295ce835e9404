"""Shields for code of the standard library that an interruption must not leave half done: forks and log lines."""

from __future__ import annotations

import _posixsubprocess
import functools
import logging
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

from holdfast.runtime.forks import free
from holdfast.runtime.interrupts import shielded, this_thread

#: All ways to fork in Python; `subprocess` has the last one under a name of its own.
_FORKS: Final = ((os, "fork"), (os, "forkpty"), (_posixsubprocess, "fork_exec"), (subprocess, "_fork_exec"))


def shield_forks() -> None:
    """Has an interruption wait for the end of a fork; to be called before the app is imported, which may take names.

    CPython ignores what is raised in a callback of `os.register_at_fork`: there an interruption would be lost, and the
    locks taken for the fork left held. A callback of ours could not prevent that, since those of other modules, such
    as `logging`, run before and after it, and its own first bytecode is too late. So the call itself is shielded.
    """
    for module, name in _FORKS:
        if (fork := getattr(module, name, None)) is not None:
            setattr(module, name, _shielded(fork))


def shield_logging() -> None:
    """Has an interruption wait for the end of a log line, whatever handlers there are, and of a call to `getLogger`.

    Every other thread that logs would wait for a lock that an interrupted one holds. All handlers are called by the
    public `Logger.handle`; the lock of all loggers is taken in many places, and `logging` has no public name for it.
    """
    if not isinstance(logging._lock, ShieldedLock):  # type: ignore[attr-defined]  # noqa: SLF001
        logging._lock = ShieldedLock()  # type: ignore[attr-defined]  # noqa: SLF001
        logging.Logger.handle = _shielded(logging.Logger.handle)  # type: ignore[method-assign]


class ShieldedLock:
    """A reentrant lock with which a thread is not interrupted."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As that of a lock; an interruption comes before it or after `release`."""
        interruption = this_thread.interruption
        if interruption is not None:
            interruption.shield()
        acquired = self._lock.acquire(blocking, timeout)
        if not acquired and interruption is not None:
            interruption.unshield()
        return acquired

    def release(self) -> None:
        """As that of a lock; raises what came meanwhile."""
        self._lock.release()
        interruption = this_thread.interruption
        if interruption is not None:
            interruption.unshield()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> Literal[False]:
        self.release()
        return False

    def _at_fork_reinit(self) -> None:
        """`logging` calls this in a forked process."""
        free(self._lock)


def _shielded(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def shielded_call(*args: Any, **kwargs: Any) -> Any:
        with shielded():
            return call(*args, **kwargs)

    return shielded_call
