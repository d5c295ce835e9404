"""The partition map: which queue has which partitions, and which shard keeps each of them.

Two rules make a changed map harmless to what was recorded under an older one. The partitions of a queue are the
first ones of a fixed order, so a queue that is spread wider keeps those it had. And a task with a request_id
always lives in the first of them, so its repeat meets it there whatever the map says.
"""

from __future__ import annotations

import zlib

import msgspec

from holdfast.core.ids import MAX_PARTITION
from holdfast.errors import BadOption


class PartitionMap(msgspec.Struct, frozen=True, kw_only=True):
    """Versioned; a call made by an older version is refused, and the caller fetches this one."""

    #: 0 is the map of a store that was never divided.
    version: int = 0
    #: The shard (a store's URL) that keeps partition 0, 1, 2…
    shards: tuple[str, ...] = ("",)
    #: How many partitions there were at first: what queues are hashed over, so that added ones move nothing.
    base: int = 1
    #: Queues whose new tasks go to several partitions; those of all others go to one.
    spread: dict[str, int] = {}
    #: The most partitions that each of these queues ever had: where its tasks may still be.
    widest: dict[str, int] = {}
    #: Which partition keeps this copy; that of partition 0 decides.
    partition: int = 0

    def partitions(self, queue: str) -> tuple[int, ...]:
        """Where new tasks of this queue go, its first partition in front."""
        return self._order(queue)[: self.spread.get(queue, 1)]

    def reach(self, queue: str) -> tuple[int, ...]:
        """Where tasks of this queue may be, new ones and those from before it was spread less; it only grows."""
        return self._order(queue)[: self.widest.get(queue, 1)]

    def partition_for(self, queue: str, request_id: str | None, turn: int) -> int:
        """The partition for a new task: the queue's first one for a request_id, else by turns."""
        candidates = self.partitions(queue)
        return candidates[0] if request_id is not None else candidates[turn % len(candidates)]

    def allows(self, queue: str, partition: int, *, has_request_id: bool) -> bool:
        """Whether a task that carries this partition is found there by workers, and by its own repeat."""
        reach = self.reach(queue)
        return partition == reach[0] if has_request_id else partition in reach

    def shard(self, partition: int) -> str:
        """The shard that keeps this partition."""
        if not 0 <= partition < len(self.shards):
            raise BadOption(f"partition {partition} is not in the map of version {self.version}")
        return self.shards[partition]

    def with_spread(self, queue: str, width: int) -> PartitionMap:
        """The next version, in which new tasks of this queue go to that many partitions."""
        if not 1 <= width <= len(self.shards):
            raise BadOption(f"queue {queue!r} can be spread over 1 to {len(self.shards)} partitions, not {width}")
        widest = max(width, self.widest.get(queue, 1))
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            spread={**self.spread, queue: width},
            widest={**self.widest, queue: widest},
        )

    def with_shards(self, shards: tuple[str, ...]) -> PartitionMap:
        """The next version, with each partition kept by the shard named here; partitions are never removed."""
        if not len(self.shards) <= len(shards) <= MAX_PARTITION + 1:
            raise BadOption(f"a map of {len(self.shards)} partitions cannot become one of {len(shards)}")
        return msgspec.structs.replace(self, version=self.version + 1, shards=shards)

    def copy_for(self, partition: int) -> PartitionMap:
        """The same map, as this partition keeps it."""
        return msgspec.structs.replace(self, partition=partition)

    def follows(self, current: PartitionMap) -> bool:
        """Whether a store that keeps `current` may take this one instead of it.

        Partition 0 takes the next version only, so that of two changes made at once one is refused. The others
        take any newer one: they copy what was decided, and may have missed some.
        """
        newer_by = self.version - current.version
        return newer_by == 1 or (newer_by > 1 and self.partition > 0)

    def _order(self, queue: str) -> tuple[int, ...]:
        """All partitions in the order in which this queue takes them."""
        first = zlib.crc32(queue.encode()) % self.base
        return (*(((first + offset) % self.base) for offset in range(self.base)), *range(self.base, len(self.shards)))


def first_map(shards: tuple[str, ...]) -> PartitionMap:
    """The map with which a store over these shards begins."""
    return PartitionMap(version=1, shards=shards, base=len(shards))
