"""Processes that end with the tests, whatever happens to the tests."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Protocol


class Endable(Protocol):
    """Something that can be ended, more than once."""

    def end(self) -> None:
        """Nothing is left of it."""
        ...


_to_end: set[Endable] = set()


def end_at_exit(thing: Endable) -> None:
    """Ends it when this process exits, if nobody has done so before."""
    if not _to_end:
        atexit.register(_end_all, os.getpid())
    _to_end.add(thing)


def ended(thing: Endable) -> None:
    """It need not be ended any more."""
    _to_end.discard(thing)


def _end_all(our_pid: int) -> None:
    if os.getpid() == our_pid:  # a forked child has our list, but not our servers
        for thing in list(_to_end):
            thing.end()


class ServerProcess:
    """A process in a group of its own, with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._process = _launcher().submit(_launch, _dying_with_us(command), log).result()
        self.pid = self._process.pid
        self._frozen = False

    @property
    def alive(self) -> bool:
        """Whether it runs, frozen or not."""
        return self._process.poll() is None

    @property
    def frozen(self) -> bool:
        """Whether it was stopped by `freeze`."""
        return self._frozen

    def freeze(self) -> None:
        """SIGSTOP to the group: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT to the group."""
        self._signal(signal.SIGCONT)
        self._frozen = False

    def kill(self) -> None:
        """SIGKILL to the group, children that save or rewrite included; returns when it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self, timeout: float = 10.0) -> None:
        """SIGTERM, and SIGKILL if that is not enough."""
        if self.frozen:
            self.thaw()
        if self.alive:
            self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return


def _launch(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as sink:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )


def _dying_with_us(command: Sequence[str]) -> list[str]:
    """The command with the kernel's promise to kill it when we are gone, even by SIGKILL; other systems do without."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)


@cache
def _launcher() -> ThreadPoolExecutor:
    """The one thread that starts servers: the kernel's promise is tied to the thread, and test threads end early."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-launcher")
