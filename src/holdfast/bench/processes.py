"""Real workers and servers, started by the command line, and what the system says of their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.bench.tasks import REFERENCE
from holdfast.errors import StoreUnavailable

_STOP_S = 30
_CPU_HZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class MeasuredProcess:
    """A `holdfast` process with its children."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log

    def pids(self) -> list[int]:
        """The process and all that descends from it."""
        parents = {pid: int(fields[1]) for pid, fields in _processes()}
        family = [self._process.pid]
        for pid in family:
            family.extend(child for child, parent in parents.items() if parent == pid)
        return family

    def cpu_seconds(self) -> float:
        """Processor time used so far by all of its processes."""
        family = set(self.pids())
        return sum(int(fields[11]) + int(fields[12]) for pid, fields in _processes() if pid in family) / _CPU_HZ

    def memory_mb(self) -> float:
        """Resident memory of all of its processes; what they share counts once for each."""
        family = set(self.pids())
        pages = sum(int(fields[21]) for pid, fields in _processes() if pid in family)
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def check(self) -> None:
        """Refuses to go on when it has ended."""
        if self._process.poll() is not None:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise StoreUnavailable(f"the {self._name} ended with {self._process.returncode}: {' '.join(last)}")


@contextmanager
def measured_worker(url: str, queue: str, concurrency: int, directory: Path) -> Iterator[MeasuredProcess]:
    """One worker with one child on this queue; it is gone after the block."""
    words = ["worker", REFERENCE, "--queues", queue, "--concurrency", str(concurrency), "--processes", "1"]
    with measured(words, url, directory / f"worker-{queue}.txt") as worker:
        yield worker


@contextmanager
def measured(words: Sequence[str], url: str, log: Path) -> Iterator[MeasuredProcess]:
    """A command of `holdfast` on this store; it is gone after the block."""
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "holdfast", *words],
            env={**os.environ, "HOLDFAST_URL": url, "HOLDFAST_KEYS": ""},  # its tasks are plain
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield MeasuredProcess(words[0], process, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Every process of this system with its fields of /proc/PID/stat, from the state on."""
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(entry.name), text.rpartition(")")[2].split()
