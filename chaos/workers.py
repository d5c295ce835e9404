"""Real worker processes that can be killed and are replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from tests.support import WorkerProcess, eventually, run_worker

from chaos.complaints import complaints_in
from chaos.faults import Deployment
from chaos.tasks import QUEUES, QUIET_QUEUE, TRACE_VARIABLE

_OPTIONS = ("--queues", ",".join([QUIET_QUEUE, *QUEUES]), "--grace", "2s")
#: Longer than a lease and the time after which another process looks for claims that have run out.
_FROZEN_SECONDS = 8.0


class Workers:
    """Some workers on one store; a killed one is replaced."""

    def __init__(self, deployment: Deployment, trace: Path, stack: ExitStack) -> None:
        self._url = deployment.worker_url or deployment.url
        self._env = {**deployment.environment, TRACE_VARIABLE: str(trace)}
        self._stack = stack
        self._options = (*_OPTIONS, "--lease", deployment.lease, "--concurrency", str(deployment.concurrency))
        self.running: list[WorkerProcess] = []

    def add(self) -> WorkerProcess:
        """One more."""
        worker = self._stack.enter_context(run_worker("chaos.tasks:app", self._url, *self._options, env=self._env))
        self.running.append(worker)
        return worker

    def begin(self, count: int) -> None:
        """Starts this many more and waits until they are ready."""
        for _ in range(count):
            self.add()
        self.wait_until_ready()

    def end(self) -> int:
        """SIGTERM to all; returns how many there were, when they have ended."""
        ended, self.running = self.running, []
        for worker in ended:
            worker.stop()
        return len(ended)

    def wait_until_ready(self) -> None:
        """Returns when all have told of their start."""
        for worker in self.running:
            eventually(lambda worker=worker: "task types:" in worker.output(), 30, "the workers have started")  # type: ignore[misc]

    def kill_one(self, random: Random) -> str:
        """SIGKILL to a worker and its children; another one takes its place and has started when this returns."""
        victim = self.running.pop(random.randrange(len(self.running)))
        victim.kill_all()
        self.add()
        self.wait_until_ready()
        return f"killed worker {victim.pid}"

    def freeze_one(self, random: Random) -> str:
        """SIGSTOP to a worker and its children until all of its claims have passed to others, then SIGCONT."""
        victim = random.choice(self.running)
        pids = [victim.pid, *victim.children()]
        _signal_all(pids, signal.SIGSTOP)
        thaws_at = time.monotonic() + _FROZEN_SECONDS
        eventually(lambda: time.monotonic() >= thaws_at, 2 * _FROZEN_SECONDS, "leases have run out")
        _signal_all(pids, signal.SIGCONT)
        return f"froze worker {victim.pid} for {_FROZEN_SECONDS:g} s"

    def complaints(self) -> list[str]:
        """Lines of those that run now which tell of a bug."""
        return [line for worker in self.running for line in complaints_in(worker.output())]


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


@contextmanager
def running_workers(deployment: Deployment, trace: Path, count: int) -> Iterator[Workers]:
    """Runs this many workers; nothing of them outlives the block."""
    with ExitStack() as stack:
        workers = Workers(deployment, trace, stack)
        workers.begin(count)
        yield workers
