"""Metrics of one process: names, counters and histograms, and their text for Prometheus."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

#: At most this many pairs of queue and type are counted apart in one process, and all others together.
MAX_PAIRS: Final = 100
OTHER: Final = "other"

#: Of runs and of waiting: from what takes no time to what takes half an hour.
_LONG_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800)
#: Of calls to the store.
_SHORT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class MetricKind(StrEnum):
    """What a metric does."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Teller(StrEnum):
    """Who tells of it."""

    WORKER = "worker"
    SERVER = "server"
    BOTH = "both"


class Metric(msgspec.Struct, frozen=True, eq=False):
    """One line of the table; equal to itself only."""

    name: str
    kind: MetricKind
    teller: Teller
    text: str
    labels: tuple[str, ...] = ()
    #: Upper bounds in seconds.
    buckets: tuple[float, ...] = ()


def _counter(name: str, teller: Teller, text: str, *labels: str) -> Metric:
    return Metric(f"holdfast_{name}_total", MetricKind.COUNTER, teller, text, labels)


def _gauge(name: str, teller: Teller, text: str, *labels: str) -> Metric:
    return Metric(f"holdfast_{name}", MetricKind.GAUGE, teller, text, labels)


def _histogram(name: str, teller: Teller, text: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(f"holdfast_{name}_seconds", MetricKind.HISTOGRAM, teller, text, labels, buckets)


TASKS_ENQUEUED: Final = _counter("tasks_enqueued", Teller.BOTH, "Tasks enqueued through this process.", "queue", "type")
RUNS_STARTED: Final = _counter("runs_started", Teller.BOTH, "Runs that have started.", "queue", "type")
RUNS_ENDED: Final = _counter(
    "runs_ended",
    Teller.BOTH,
    "Runs that have ended: succeeded, retried, failed, dead_lettered, cancelled, snoozed, released, or lost.",
    "queue",
    "type",
    "outcome",
)
RUN_SECONDS: Final = _histogram(
    "run", Teller.BOTH, "How long runs took, however they ended.", "queue", "type", buckets=_LONG_SECONDS
)
WAIT_SECONDS: Final = _histogram(
    "wait",
    Teller.BOTH,
    "How long tasks were ready before they were claimed; a delay, a backoff or a snooze is not counted.",
    "queue",
    "type",
    buckets=_LONG_SECONDS,
)
CLAIMS_LOST: Final = _counter(
    "claims_lost",
    Teller.BOTH,
    "Claims that were lost: lease_expired found by maintenance, worker_lost by the worker whose child died.",
    "cause",
)
SETTLEMENTS_REFUSED: Final = _counter(
    "settlements_refused", Teller.BOTH, "Settlements that were refused, by event and reason.", "event", "reason"
)
STORE_SECONDS: Final = _histogram(
    "store", Teller.BOTH, "How long calls to the store took.", "method", buckets=_SHORT_SECONDS
)
STORE_ERRORS: Final = _counter("store_errors", Teller.BOTH, "Calls to the store that failed.", "method", "error")
STORE_UP: Final = _gauge("store_up", Teller.BOTH, "Whether the last read of the store succeeded.")
QUEUE_TASKS: Final = _gauge("queue_tasks", Teller.BOTH, "Tasks of a queue in each state.", "queue", "state")
QUEUE_OLDEST: Final = _gauge(
    "queue_oldest_ready_seconds", Teller.BOTH, "How long the oldest ready task of a queue has been waiting.", "queue"
)
QUEUE_PAUSED: Final = _gauge("queue_paused", Teller.BOTH, "Whether a queue is paused.", "queue")
WORKERS: Final = _gauge("workers", Teller.BOTH, "Workers that the store knows: running, draining, silent.", "status")
SLOTS: Final = _gauge("slots", Teller.BOTH, "Slots of all workers that are not silent: busy, free.", "state")
WORKER_SLOTS: Final = _gauge("worker_slots", Teller.WORKER, "Slots of this worker: busy, free.", "state")
WORKER_CHILDREN: Final = _gauge("worker_children", Teller.WORKER, "Child processes of this worker.")
WORKER_MEMORY: Final = _gauge("worker_memory_bytes", Teller.WORKER, "Memory of this worker and its children.")
MAINTENANCE_LED: Final = _gauge("maintenance_partitions", Teller.BOTH, "Partitions that this process leads.")
BUILD: Final = _gauge("build_info", Teller.BOTH, "Always 1; the version of Holdfast.", "version")

METRICS: Final = (
    TASKS_ENQUEUED,
    RUNS_STARTED,
    RUNS_ENDED,
    RUN_SECONDS,
    WAIT_SECONDS,
    CLAIMS_LOST,
    SETTLEMENTS_REFUSED,
    STORE_SECONDS,
    STORE_ERRORS,
    STORE_UP,
    QUEUE_TASKS,
    QUEUE_OLDEST,
    QUEUE_PAUSED,
    WORKERS,
    SLOTS,
    WORKER_SLOTS,
    WORKER_CHILDREN,
    WORKER_MEMORY,
    MAINTENANCE_LED,
    BUILD,
)


# -- tally ---------------------------------------------------------------------------------------------------


#: A counter has one number; a histogram has one for each bucket, one for what is beyond them, and the sum in µs.
Cell = list[int]
#: The name of a metric, its labels, and the numbers that are to be added.
Count = tuple[str, tuple[str, ...], list[int]]

_PAIR: Final = ("queue", "type")
_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def bounds_us(metric: Metric) -> list[int]:
    """The bounds of a histogram's buckets in µs."""
    return [round(bound * 1e6) for bound in metric.buckets]


def note_all(cell: Cell, bounds: Sequence[int], values: list[int]) -> None:
    """Puts each of the values, which are sorted meanwhile, into its bucket; the sum is not touched."""
    values.sort()
    below = 0
    for place, bound in enumerate(bounds):
        if below == len(values):
            return
        upto = bisect_right(values, bound, below)
        cell[place] += upto - below
        below = upto
    cell[len(bounds)] += len(values) - below


class Tally:
    """The counters and histograms of one process, in cells that stay where they are."""

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self._cells: dict[tuple[Metric, tuple[str, ...]], Cell] = {}
        self._pairs: set[tuple[str, str]] = set()
        self._max_pairs = max_pairs

    def cell(self, metric: Metric, *labels: str) -> Cell:
        """Where this is counted; one pair of queue and type too many is counted with the others."""
        if metric.labels[:2] == _PAIR:
            labels = (*self.bounded(labels[0], labels[1]), *labels[2:])
        cell = self._cells.get((metric, labels))
        if cell is None:
            size = len(metric.buckets) + 2 if metric.kind is MetricKind.HISTOGRAM else 1
            cell = self._cells[metric, labels] = [0] * size
        return cell

    def count(self, metric: Metric, *labels: str, by: int = 1) -> None:
        """Adds `by` to the counter."""
        self.cell(metric, *labels)[0] += by

    def take(self) -> list[Count]:
        """What was counted since this was last called."""
        taken = []
        for (metric, labels), cell in list(self._cells.items()):
            if any(cell):
                numbers = cell.copy()
                taken.append((metric.name, labels, numbers))
                for place, number in enumerate(numbers):  # not set to 0: another thread may be counting
                    cell[place] -= number
        return taken

    def add(self, counts: Iterable[Count]) -> None:
        """Adds what another tally has taken."""
        for name, labels, numbers in counts:
            cell = self.cell(_BY_NAME[name], *labels)
            for place, number in enumerate(numbers):
                cell[place] += number

    def __iter__(self) -> Iterator[tuple[Metric, tuple[str, ...], Sequence[int]]]:
        """All that was counted, metric by metric."""
        for (metric, labels), cell in sorted(self._cells.items(), key=lambda item: (item[0][0].name, item[0][1])):
            yield metric, labels, cell

    def bounded(self, queue: str, task_type: str) -> tuple[str, str]:
        """The labels under which this queue and type are counted: their own names, while there are not too many."""
        pair = queue, task_type
        if pair not in self._pairs:
            if len(self._pairs) >= self._max_pairs:
                return OTHER, OTHER
            self._pairs.add(pair)
        return pair


class Clocked:
    """A histogram's cell with its bounds."""

    __slots__ = ("_bounds_us", "_cell")

    def __init__(self, tally: Tally, metric: Metric, *labels: str) -> None:
        self._cell = tally.cell(metric, *labels)
        self._bounds_us = bounds_us(metric)

    def note(self, microseconds: int) -> None:
        """Counts one event that took this many microseconds."""
        cell = self._cell
        cell[bisect_left(self._bounds_us, microseconds)] += 1
        cell[-1] += microseconds
