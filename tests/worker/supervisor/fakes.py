"""Children without processes, for the parts of the supervisor."""

from __future__ import annotations

from types import SimpleNamespace

from holdfast.clock import Clock
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import Ended, FromChild, Held, ProgressReport, ToChild
from holdfast.worker.supervisor.pool import ChildPool
from holdfast.worker.supervisor.process import ChildProcess


class FakeProcess(ChildProcess):
    """A child without a process: the test says what it sends, and sees what was sent to it."""

    def __init__(self, number: int = 1, *, alone: bool = False) -> None:
        process = SimpleNamespace(pid=0, returncode=None)
        super().__init__(number, f"w:{number}.1", process, SimpleNamespace(), alone=alone)  # type: ignore[arg-type]
        self.sent: list[ToChild] = []

    def send(self, message: ToChild) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.killed = True

    def say(self, message: FromChild) -> None:
        """Takes note of a message as if the child had sent it."""
        match message:
            case Held():
                self._note(message)
            case Ended(keys):
                self._clear(keys)
            case ProgressReport(latest):
                self.progress.update(latest)


def pool_of(clock: Clock, *children: FakeProcess) -> ChildPool:
    """A pool that consists of these children."""
    pool = ChildPool(WorkerOptions(app="no.such:app"), "w", clock)
    pool._children.update((child.worker_id, child) for child in children)
    return pool
