"""Processes that end with the tests, whatever happens to the tests."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
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
    """A process in a group of its own, with its output in a file; `user` is for servers that refuse to run as root."""

    def __init__(self, command: Sequence[str], log: Path, user: str | None = None) -> None:
        self._process = _launcher().submit(_launch, _dying_with_us(command, user), log).result()
        self.pid = self._process.pid
        self._frozen = False

    @property
    def alive(self) -> bool:
        """Whether it runs, frozen or not."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal has ended it."""
        return self._process.poll()

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

    def stop(self, timeout: float = 10.0, number: int = signal.SIGTERM) -> None:
        """SIGTERM or the given signal, and SIGKILL if that is not enough."""
        if self.frozen:
            self.thaw()
        if self.alive:
            self._process.send_signal(number)
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
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,  # ours may be closed to another user
        )


def _dying_with_us(command: Sequence[str], user: str | None) -> list[str]:
    """The command with the kernel's promise to kill it when we are gone, even by SIGKILL; other systems do without."""
    setpriv = shutil.which("setpriv")
    if not setpriv:
        assert user is None, "setpriv is needed to run servers as another user; it is part of util-linux"
        return list(command)
    # One call for both: a change of the user takes the kernel's promise back.
    return [setpriv, *_becoming(user), "--pdeathsig", "KILL", *command]


@cache
def server_user() -> str | None:
    """Whom servers run as that refuse root, as PostgreSQL and its helpers do; everybody else runs them as oneself."""
    return "postgres" if os.geteuid() == 0 else None


def own_directory(prefix: str, user: str | None) -> Path:
    """A new directory that belongs to this user, or to us."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    if user:
        shutil.chown(directory, user, user)
    return directory


def run_as(user: str | None, *command: str | Path, cwd: Path) -> str:
    """Runs a program to its end, as this user if one is given, and returns what it printed; fails if it failed."""
    words = ["setpriv", *_becoming(user), *map(str, command)] if user else list(map(str, command))
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command[0]}: {done.stderr or done.stdout}"
    return done.stdout


def _becoming(user: str | None) -> list[str]:
    return ["--reuid", user, "--regid", user, "--init-groups"] if user else []


@cache
def _launcher() -> ThreadPoolExecutor:
    """The one thread that starts servers: the kernel's promise is tied to the thread, and test threads end early."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-launcher")
