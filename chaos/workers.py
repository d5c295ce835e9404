"""Real worker processes that can be killed and are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from tests.support import WorkerProcess, eventually, run_worker

from chaos.tasks import QUEUES, TRACE_VARIABLE

_OPTIONS = ("--queues", ",".join(QUEUES), "--concurrency", "50", "--grace", "2s")


class Workers:
    """Some workers on one store; a killed one is replaced at once."""

    def __init__(self, url: str, trace: Path, stack: ExitStack, lease: str) -> None:
        self._url = url
        self._trace = trace
        self._stack = stack
        self._options = (*_OPTIONS, "--lease", lease)
        self.running: list[WorkerProcess] = []

    def add(self) -> WorkerProcess:
        """One more."""
        env = {TRACE_VARIABLE: str(self._trace)}
        worker = self._stack.enter_context(run_worker("chaos.tasks:app", self._url, *self._options, env=env))
        self.running.append(worker)
        return worker

    def wait_until_ready(self) -> None:
        """Returns when all have told of their start."""
        for worker in self.running:
            eventually(lambda worker=worker: "task types:" in worker.output(), 30, "the workers have started")  # type: ignore[misc]

    def kill_one(self, random: Random) -> int:
        """SIGKILL to a worker and its children; another one takes its place. Returns the pid."""
        victim = self.running.pop(random.randrange(len(self.running)))
        victim.kill_all()
        self.add()
        return victim.pid

    def complaints(self) -> list[str]:
        """Lines of those that run now which tell of a bug."""
        lines = [line for worker in self.running for line in worker.output().splitlines()]
        return [line for line in lines if "bug in Holdfast" in line or "Traceback" in line]


@contextmanager
def running_workers(url: str, trace: Path, count: int, lease: str) -> Iterator[Workers]:
    """So many workers; nothing of them outlives the block."""
    with ExitStack() as stack:
        workers = Workers(url, trace, stack, lease)
        for _ in range(count):
            workers.add()
        workers.wait_until_ready()
        yield workers
