"""The order in which a worker looks into its queues: strict, or by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.names import check_queue
from holdfast.errors import BadOption

MAX_WEIGHT = 1_000
#: Where tasks wait whose type and app name no queue.
DEFAULT_QUEUE = "default"


class QueueShare(NamedTuple):
    """Take up to `limit` tasks from `queue` before looking into the next one."""

    queue: str
    limit: int


class StrictOrder:
    """The first queue is served as long as it has tasks."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = tuple(queues)

    def shares(self, slots: int) -> list[QueueShare]:
        """All slots to every queue, in order."""
        return [QueueShare(queue, slots) for queue in self.queues]


class WeightedOrder:
    """Queues share the slots by weight; what one leaves over, the others get.

    Smooth weighted round robin, carried over from call to call, so that the shares are right in the long
    run even with one free slot at a time.
    """

    def __init__(self, weights: Sequence[tuple[str, int]]) -> None:
        self.weights = tuple(weights)
        self.queues = tuple(queue for queue, _ in weights)
        self._credit = dict.fromkeys(self.queues, 0)
        self._total = sum(weight for _, weight in weights)

    def shares(self, slots: int) -> list[QueueShare]:
        """How many of the free slots each queue may fill first, the largest share in front."""
        limits = dict.fromkeys(self.queues, 0)
        for _ in range(slots):
            for queue, weight in self.weights:
                self._credit[queue] += weight
            chosen = max(self.queues, key=self._credit.__getitem__)
            self._credit[chosen] -= self._total
            limits[chosen] += 1
        ordered = sorted(limits.items(), key=lambda item: -item[1])
        return [QueueShare(queue, limit) for queue, limit in ordered]


QueueOrder = StrictOrder | WeightedOrder


def parse_queues(text: str) -> QueueOrder:
    """`high,low` is strict order, `high=5,default=2,low=1` is by weight."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise BadOption('queues: name at least one, such as "default" or "high=5,low=1"')
    names = [part.partition("=")[0] for part in parts]
    if len(set(names)) != len(names):
        raise BadOption(f"queues: {text!r} names a queue twice")
    if not any("=" in part for part in parts):
        return StrictOrder([check_queue(name) for name in names])
    return WeightedOrder([_weighted(part) for part in parts])


def queue_order(told: str | None, declared: Sequence[str]) -> QueueOrder:
    """The order of the queues that a worker was told to serve; else all that its app declares, with equal shares."""
    if told is not None:
        return parse_queues(told)
    if len(declared) <= 1:
        return StrictOrder(declared or (DEFAULT_QUEUE,))
    return WeightedOrder([(queue, 1) for queue in declared])


def _weighted(part: str) -> tuple[str, int]:
    name, _, weight = part.partition("=")
    if not weight.isascii() or not weight.isdecimal() or not 1 <= int(weight) <= MAX_WEIGHT:
        raise BadOption(f'queues: {part!r} needs a weight from 1 to {MAX_WEIGHT}, as in "high=5,low=1"')
    return check_queue(name), int(weight)
