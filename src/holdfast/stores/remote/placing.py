"""Where new tasks go: by the partition map of the store behind the gateway, so that their ids can carry it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from holdfast.clock import Clock, SystemClock
from holdfast.core.partitions import PartitionMap
from holdfast.errors import StoreError

#: A map may be as old as this: an old one is harmless, since where a queue's tasks may be only grows.
_FRESH_MS: Final = 30_000


class Placing:
    """The last map that was heard of."""

    def __init__(self, fetch: Callable[[], Awaitable[PartitionMap]], clock: Clock | None = None) -> None:
        self._fetch = fetch
        self._clock = clock or SystemClock()
        self._map: PartitionMap | None = None
        self._fetched_at_ms = 0
        self._turns = count()

    def place(self, queue: str, request_id: str | None) -> int:
        """The partition for a new task."""
        return (self._map or PartitionMap()).partition_for(queue, request_id, next(self._turns))

    async def learn(self) -> None:
        """Fetches the map if none is known."""
        if self._map is None:
            await self._learn()

    @property
    def is_old(self) -> bool:
        """Whether the map is one that can change, and has grown old."""
        if self._map is None or len(self._map.shards) == 1:
            return False
        return self._clock.monotonic_ms() - self._fetched_at_ms > _FRESH_MS

    async def keep_up(self, *, refused: bool = False) -> None:
        """Fetches the map anew if it has grown old, or if the gateway did not like what was made by it."""
        if self._map is not None and (refused or self.is_old):
            with contextlib.suppress(StoreError):
                await self._learn()

    async def _learn(self) -> None:
        self._fetched_at_ms = self._clock.monotonic_ms()  # before the answer: of many callers at once, one asks
        self._map = await self._fetch()
