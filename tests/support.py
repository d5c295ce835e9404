"""What several test directories need: waiting with a deadline, and real worker processes."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
#: Of child processes: they run the tree that these tests are part of, wherever `holdfast` is installed from.
PYTHONPATH = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
#: Signing and encryption keys, as HOLDFAST_KEYS has them.
KEYS = f"sign:s1={base64.b64encode(b's' * 32).decode()},encrypt:e1={base64.b64encode(b'e' * 32).decode()}"
#: `HOLDFAST_TEST_ENCRYPTED=1`: every app of the tests signs and encrypts, in this process and in those that it starts.
ENCRYPTED = bool(os.environ.get("HOLDFAST_TEST_ENCRYPTED"))
_PAUSE_S = 0.01


def eventually(condition: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """The first truthy value of `condition`; fails with its last value when `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition!r}; last value: {value!r}")
        pause.wait(_PAUSE_S)
    return value


def free_port() -> int:
    """A TCP port on the loopback address that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def holdfast_command(*arguments: str) -> list[str]:
    """The command line of the `holdfast` that was installed with this interpreter."""
    return [str(Path(sys.executable).with_name("holdfast")), *arguments]


def environment(url: str | None = None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a child process: ours without settings of Holdfast, then what is given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    clean.update({"PYTHONPATH": PYTHONPATH, "NO_COLOR": "1", "COLUMNS": "120", "PYTHONWARNINGS": "default"})
    if ENCRYPTED:
        clean["HOLDFAST_KEYS"] = KEYS
    if url is not None:
        clean["HOLDFAST_URL"] = url
    clean.update(more or {})
    return clean


def run_holdfast(
    *arguments: str,
    url: str | None = None,
    cwd: Path | None = None,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `holdfast` with these arguments to its end and captures both of its outputs."""
    return subprocess.run(
        holdfast_command(*arguments),
        env=environment(url, env),
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class WorkerProcess:
    """A `holdfast worker` that runs: its pid, its output, and ways to end it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log
        self._known: set[int] = set()

    def output(self) -> str:
        """Both outputs so far."""
        return self._log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Sends a signal to the supervisor."""
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """The pids of the supervisor's direct children that are alive."""
        found = children_of(self.pid)
        self._known.update(found)
        return found

    def kill_all(self) -> None:
        """SIGKILL to the supervisor and its children, as the end of a machine would do."""
        victims = [self.pid, *self.children()]
        # All stand still first: a child that outlived its supervisor by a moment would hand back its tasks.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                _kill(pid, number)
        self.process.wait(10)

    def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM, then the exit code; kills all of it if that takes too long."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._end_all()
            raise AssertionError(f"the worker did not stop in {timeout:g} s:\n{self.output()}") from None

    def _end_all(self) -> None:
        """Children have sessions of their own, and one that stands still would outlive its supervisor."""
        self.children()
        self.process.kill()
        self.process.wait(10)
        for pid in filter(_is_worker_child, self._known):
            _kill(pid, signal.SIGKILL)


@contextmanager
def run_worker(
    app: str,
    url: str,
    *options: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[WorkerProcess]:
    """A real `holdfast worker APP OPTIONS…` in a process group of its own; nothing of it outlives the block."""
    with tempfile.TemporaryDirectory(prefix="holdfast-worker-") as directory:
        log = Path(directory) / "output.txt"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                holdfast_command("worker", app, *options),
                env=environment(url, env),
                cwd=cwd or ROOT,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        worker = WorkerProcess(process, log)
        try:
            yield worker
        except BaseException as error:
            error.add_note(f"output of the worker:\n{worker.output()}")
            raise
        finally:
            worker._end_all()


def children_of(pid: int) -> list[int]:
    """The direct child processes of `pid`, zombies left out."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sorted(other for other in pids if (fields := _stat(other)) and int(fields[1]) == pid and fields[0] != "Z")


def alive(pid: int) -> bool:
    """Whether a process with this pid runs (a zombie does not)."""
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def processor_seconds(pid: int) -> float:
    """What this process has used of the processors so far; 0 if it is gone."""
    fields = _stat(pid)
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> Sequence[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _is_worker_child(pid: int) -> bool:
    """Whether this pid is still that of a child, and not somebody else's by now."""
    try:
        return b"holdfast.worker.child.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
