"""Imported first, takes away from Python what it does not have on Windows: modules, calls, signals, event loops."""

from __future__ import annotations

import os
import signal
import sys

#: uvloop too: it is not made for Windows.
MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "uvloop")
CALLS = (
    "fork",
    "fchmod",
    "geteuid",
    "getuid",
    "killpg",
    "mkfifo",
    "posix_fallocate",
    "register_at_fork",
    "setsid",
    "statvfs",
    "sysconf",
)
SIGNALS = ("SIGKILL", "SIGHUP", "SIGTTIN", "SIGTTOU", "SIGUSR1", "SIGUSR2", "SIGCHLD")


def take_away() -> None:
    """Makes this process as poor."""
    import asyncio  # it needs them itself, on Linux
    import asyncio.unix_events
    import shutil
    import subprocess  # noqa: F401
    import tempfile  # noqa: F401

    space = shutil.disk_usage("/")
    shutil.disk_usage = lambda path: space
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in CALLS:
        delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)

    def refuse(*_: object) -> None:
        raise NotImplementedError

    asyncio.SelectorEventLoop.add_signal_handler = refuse  # type: ignore[method-assign, assignment]


take_away()
