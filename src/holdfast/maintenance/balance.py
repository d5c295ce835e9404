"""How several processes share the maintenance of many partitions: by giving way, never by talking to each other."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Store

#: For each partition that a process has or is about to take, it lets the others go first for this long.
_GIVE_WAY_MS = 200
_LONGEST_MS = 2_000


class Balance:
    """What this process looks after, and whether that is more than its share."""

    def __init__(self, store: Store, partitions: int, random_unit: Callable[[], float]) -> None:
        self._store = store
        self._partitions = partitions
        self._random_unit = random_unit
        #: Partitions that this process looks after, or is about to ask for.
        self._mine: set[int] = set()

    def in_any_order(self) -> list[int]:
        """The partitions in an order of this process's own: two that begin together begin with different ones."""
        return sorted(range(self._partitions), key=lambda _: self._random_unit())

    async def give_way(self, partition: int) -> None:
        """Lets processes with fewer partitions ask for this one first."""
        pause_ms = min(len(self._mine) * _GIVE_WAY_MS, _LONGEST_MS)
        self._mine.add(partition)
        if pause_ms:
            await asyncio.sleep(pause_ms / 1000)

    def without(self, partition: int) -> None:
        """Notes that this process does not look after that partition, or no longer."""
        self._mine.discard(partition)

    async def gives_away(self, partition: int) -> bool:
        """Whether this process has more than its share, and so should let that partition go."""
        if len(self._mine) <= 1:
            return False
        try:
            alive = sum(worker.alive for worker in await self._store.workers())
        except StoreUnavailable:
            return False  # the list lies in one partition; while that is away, the others are still looked after
        if len(self._mine) <= math.ceil(self._partitions / max(1, alive)):
            return False
        self.without(partition)
        return True
