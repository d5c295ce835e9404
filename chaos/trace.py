"""What was really run: the lines that tasks have left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chaos.journal import Event
from holdfast.core.tokens import fencing_token


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one task, as it told of itself."""

    at: float
    task_id: str
    token: str
    attempt: int
    pid: int
    number: int

    @property
    def delivery(self) -> int:
        """Which claim of the task this is, counted from 1."""
        return fencing_token(self.token)

    def event(self) -> Event:
        """The same as an event of the journal."""
        return Event(self.at, "run", f"{self.token}, attempt {self.attempt}, pid {self.pid}", self.task_id)


def read_trace(path: Path) -> list[Run]:
    """All runs so far."""
    return [_run(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def count_runs(path: Path) -> int:
    """How many runs there were so far."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _run(words: list[str]) -> Run:
    at, task_id, token, attempt, pid, number = words
    return Run(float(at), task_id, token, int(attempt), int(pid), int(number))
