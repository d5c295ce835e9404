"""The processes of a PostgreSQL server: a postmaster and its backends, each in a group of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.servers.processes import ServerProcess, run_as
from tests.support import alive, children_of


class Postmaster(ServerProcess):
    """The first process of a server, together with the backends that it has at the time."""

    def kill_alone(self) -> None:
        """SIGKILL to the postmaster; its backends end when they notice."""
        send(self.pid, signal.SIGKILL)
        self._process.wait(10)

    def _signal(self, number: int) -> None:
        if self.alive:
            signal_family(self.pid, number)


def signal_family(postmaster: int, number: int) -> None:
    """A signal to a postmaster and to all of its backends."""
    # A stopped postmaster makes no more backends, and its list of them holds still.
    send(postmaster, signal.SIGSTOP)
    for pid in [*children_of(postmaster), postmaster]:
        send(pid, number)


def send(pid: int, number: int) -> None:
    """A signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def postmaster_of(data: Path) -> int | None:
    """The postmaster that runs on this data directory."""
    lines = _pid_file_lines(data)
    return int(lines[0]) if lines and alive(int(lines[0])) else None


def remove_shared_memory(data: Path) -> None:
    """Removes the segment that a killed server leaves behind: the machine has room for some thousand of them."""
    lines = _pid_file_lines(data)
    if len(lines) > 6 and lines[6].strip():
        run_as(None, "bash", "-c", f"ipcrm --shmem-id {lines[6].split()[-1]} || true", cwd=data)


def _pid_file_lines(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []
