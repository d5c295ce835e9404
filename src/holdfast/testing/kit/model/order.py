"""The order of handing out: shares first, then the rest, by rank, first come first served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.core.task import NewTask
from holdfast.stores.contract import Reserve
from holdfast.testing.kit.expect import expect, expect_true


class Placed(Protocol):
    """A task with its place in a queue."""

    envelope: NewTask
    seq: int
    fresh: bool

    def rank(self, steps: Mapping[str, int]) -> int:
        """The smaller, the sooner."""
        ...


def expect_order(
    ready: Sequence[Placed], request: Reserve, taken: Sequence[Placed | None], steps: Mapping[str, int]
) -> None:
    """Fails unless those taken are the ones that the request should get, in the right order."""
    expect_true("every task handed out is known and could be taken", all(entry in ready for entry in taken))
    known = [entry for entry in taken if entry is not None]
    expect("tasks are handed out once", len({entry.seq for entry in known}), len(taken))
    by_queue = {
        share.queue: sorted(
            (entry for entry in ready if entry.envelope.queue == share.queue),
            key=lambda entry: (entry.rank(steps), entry.seq),
        )
        for share in request.shares
    }
    numbers = _numbers({queue: len(entries) for queue, entries in by_queue.items()}, request)
    expect("tasks of each queue", Counter(entry.envelope.queue for entry in known), numbers)
    for queue, waiting in by_queue.items():
        _expect_first(queue, waiting, [entry for entry in known if entry.envelope.queue == queue], steps)


def _numbers(waiting: dict[str, int], request: Reserve) -> Counter[str]:
    """How many tasks each queue should give."""
    numbers: Counter[str] = Counter()
    left = request.max_tasks
    for limited in (True, False):
        for share in request.shares:
            room = min(share.limit, left) if limited else left
            number = min(room, waiting[share.queue] - numbers[share.queue])
            numbers[share.queue] += number
            left -= number
    return +numbers


def _expect_first(queue: str, waiting: Sequence[Placed], taken: Sequence[Placed], steps: Mapping[str, int]) -> None:
    ranks = [entry.rank(steps) for entry in taken]
    expect(f"ranks of the tasks from {queue}", ranks, [entry.rank(steps) for entry in waiting[: len(taken)]])
    for level in set(ranks):
        # Among equals, only those that were never moved have an order that every engine can keep.
        came = [entry.seq for entry in waiting if entry.fresh and entry.rank(steps) == level]
        given = [entry.seq for entry in taken if entry.fresh and entry.rank(steps) == level]
        expect(f"first come, first served in {queue}", given, came[: len(given)])
