"""The partition map: which queue has which partitions, and which shard keeps each of them."""

from __future__ import annotations

import zlib

import msgspec

from holdfast.core.ids import MAX_PARTITION
from holdfast.errors import BadOption


class PartitionMap(msgspec.Struct, frozen=True, kw_only=True):
    """Versioned; a call made with an older version is refused, and the caller fetches this one."""

    version: int = 1
    #: The shard (a store's name) that keeps partition 0, 1, 2…
    shards: tuple[str, ...] = ("",)
    #: Queues that are spread over several partitions; all others have one.
    spread: dict[str, int] = {}

    def partitions(self, queue: str) -> tuple[int, ...]:
        """The partitions of this queue, the first of them chosen by its name."""
        total = len(self.shards)
        width = min(self.spread.get(queue, 1), total)
        first = _hash(queue) % total
        return tuple((first + offset) % total for offset in range(width))

    def partition_for(self, queue: str, key: str) -> int:
        """The partition for a new task; the same key always gives the same one.

        The key is the request_id where there is one: a repeat must meet the first in one partition.
        """
        candidates = self.partitions(queue)
        return candidates[_hash(key) % len(candidates)]

    def shard(self, partition: int) -> str:
        """The shard that keeps this partition."""
        if not 0 <= partition < len(self.shards):
            raise BadOption(f"partition {partition} is not in the map of version {self.version}")
        return self.shards[partition]

    def with_spread(self, queue: str, width: int) -> PartitionMap:
        """The next version, in which this queue has that many partitions."""
        if not 1 <= width <= len(self.shards):
            raise BadOption(f"queue {queue!r} can be spread over 1 to {len(self.shards)} partitions, not {width}")
        return msgspec.structs.replace(self, version=self.version + 1, spread={**self.spread, queue: width})

    def with_shards(self, shards: tuple[str, ...]) -> PartitionMap:
        """The next version, with each partition kept by the shard named here; partitions are never removed."""
        if not len(self.shards) <= len(shards) <= MAX_PARTITION + 1:
            raise BadOption(f"a map of {len(self.shards)} partitions cannot become one of {len(shards)}")
        return msgspec.structs.replace(self, version=self.version + 1, shards=shards)


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())
