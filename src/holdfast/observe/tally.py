"""Counting in plain integers: cheap enough to be done for every task, and small enough to be sent every second."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.observe.names import MAX_PAIRS, METRICS, OTHER, Kind, Metric

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
            size = len(metric.buckets) + 2 if metric.kind is Kind.HISTOGRAM else 1
            cell = self._cells[metric, labels] = [0] * size
        return cell

    def count(self, metric: Metric, *labels: str, by: int = 1) -> None:
        """Counts so many."""
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
        """One that took so long."""
        cell = self._cell
        cell[bisect_left(self._bounds_us, microseconds)] += 1
        cell[-1] += microseconds
