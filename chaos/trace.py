"""What was really run: the lines that tasks have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.journal import Event, moment
from holdfast.core.ids import fencing_token


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


class Ran:
    """How often each order has run, by its number, read as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._times: Counter[int] = Counter()

    def read(self) -> None:
        """Reads what was written since the last time."""
        if self._path.exists():
            with self._path.open("rb") as trace:
                trace.seek(self._read)
                lines, end, _ = trace.read().rpartition(b"\n")
            self._read += len(lines) + len(end)
            self._times.update(int(line.rpartition(b" ")[2]) for line in lines.splitlines())

    def times(self, number: int) -> int:
        """How often this one has run."""
        return self._times[number]

    def missing(self, numbers: Iterable[int]) -> int:
        """How many of these have not run yet."""
        self.read()
        return sum(not self._times[number] for number in numbers)

    def all_of(self, numbers: Iterable[int]) -> bool:
        """Whether each of these has run by now."""
        return self.missing(numbers) == 0


def count_runs(path: Path) -> int:
    """How many runs there were so far."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _run(words: list[str]) -> Run:
    at, task_id, token, attempt, pid, number = words
    return Run(moment(float(at)), task_id, token, int(attempt), int(pid), int(number))
