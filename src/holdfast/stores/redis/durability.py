"""How many replicas must have a write before it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from holdfast.stores.redis.clients import Command
from holdfast.stores.redis.failures import TooFewReplicas
from holdfast.stores.redis.info import check_master, is_forbidden
from holdfast.stores.redis.routes import Route
from holdfast.stores.redis.urls import Address, RedisSettings

#: So old may the count of replicas be: a new one is waited for soon, and the counting costs next to nothing.
_COUNT_SECONDS: Final = 5.0

Exchange = Callable[[Address, Sequence[Command]], Awaitable[list[Any]]]


class Durability:
    """The level of one link, for one event loop.

    `local`: the master's word is enough. `replicated`: one replica has it too. `strict`: all replicas that are
    connected and all that could be promoted have it, at least one; a majority would not do, since those who elect a new
    master do not know who has the write.
    """

    def __init__(self, settings: RedisSettings, route: Route, exchange: Exchange) -> None:
        self._level = settings.durability
        self._wait_ms = settings.wait_ms
        self._route = route
        self._exchange = exchange
        self._counts: dict[Address, tuple[float, int]] = {}

    async def needed(self, master: Address) -> int:
        """How many replicas must confirm a write on this master."""
        if self._level == "local":
            return 0
        if self._level == "replicated":
            return 1
        now = asyncio.get_running_loop().time()
        counted_at, count = self._counts.get(master, (float("-inf"), 0))
        if now - counted_at > _COUNT_SECONDS:
            count = await self._count(master)
            self._counts[master] = (now, count)
        return count

    def waiting(self, needed: int) -> list[Command]:
        """The command that goes behind the script in the same breath, if one must."""
        return [("WAIT", needed, self._wait_ms)] if needed else []

    def check(self, confirmed: Sequence[Any], needed: int) -> None:
        """Raises what WAIT said, if that was not enough."""
        for count in confirmed:
            if isinstance(count, Exception):
                raise count
            if count < needed:
                raise TooFewReplicas(count, needed)

    def forget(self, master: Address) -> None:
        """Counts again before the next write: something has changed there."""
        self._counts.pop(master, None)

    async def _count(self, master: Address) -> int:
        (role,) = await self._exchange(master, [("ROLE",)])
        check_master(role)
        connected = 0 if is_forbidden(role) else len(role[2])
        return max(1, connected, await self._route.promotable(master))
