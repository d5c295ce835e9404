"""What a link holds for one event loop: connections, the way to the masters, the counts of replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Connection
from redis.exceptions import ReadOnlyError, ResponseError

from holdfast.errors import BadUrl, StoreUnavailable
from holdfast.stores.redis.clients import Command, Pool, exchange
from holdfast.stores.redis.diagnosis import misunderstanding
from holdfast.stores.redis.durability import Durability
from holdfast.stores.redis.failures import TooFewReplicas
from holdfast.stores.redis.info import check_master, fields, is_forbidden, objection
from holdfast.stores.redis.routes import route_for
from holdfast.stores.redis.urls import Address, RedisSettings
from holdfast.stores.sessions import CLOSED, LoopSession

#: Connections of one event loop to one server: calls are short, and more of them would only wait in the server.
CALL_CONNECTIONS: Final = 32
#: Each waiting pop needs a connection of its own.
WAITING_CONNECTIONS: Final = 1_024
_CLOSE_SECONDS: Final = 5.0


class Session(LoopSession):
    """The connections of one event loop; they end with it."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__()
        self.route = route_for(settings)
        self.durability = Durability(settings, self.route, self.exchange)
        self._settings = settings
        self._calling: dict[Address, Pool] = {}
        self._waiting: dict[Address, Pool] = {}
        self._met: set[Address] = set()
        self._diagnosed: set[Address] = set()
        self._closed = False

    async def exchange(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands to this server in one round trip."""
        return await self._pool(self._calling, address, CALL_CONNECTIONS).exchange(commands)

    async def wait(self, address: Address, command: Command) -> Any:
        """Sends a command that may take long, where it holds up nobody."""
        (reply,) = await self._pool(self._waiting, address, WAITING_CONNECTIONS).exchange([command])
        return reply

    async def doubt(self, address: Address | None, error: BaseException) -> None:
        """After trouble with this server: nothing that was known about it is relied on."""
        self.route.doubt(address)
        if address is None:
            return
        self.durability.forget(address)
        # Connections on which a master refused are good; those to a server that is none any more, or is gone, are not.
        answered = isinstance(error, (ResponseError, TooFewReplicas)) and not isinstance(error, ReadOnlyError)
        if (pool := self._calling.get(address)) and not answered:
            await pool.forget()

    async def misunderstanding(self, address: Address | None) -> BadUrl | None:
        """Why a server that has never answered may never do so: one of us speaks TLS and the other does not."""
        place = address or self._settings.addresses[0]
        if place in self._met or place in self._diagnosed:
            return None
        self._diagnosed.add(place)
        return await misunderstanding(self._settings, place)

    async def _end(self) -> None:
        self._closed = True
        for pool in list(self._waiting.values()):
            await pool.close()
        deadline = self.loop.time() + _CLOSE_SECONDS
        while any(pool.busy for pool in self._calling.values()) and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for pool in list(self._calling.values()):
            await pool.close()

    def _pool(self, pools: dict[Address, Pool], address: Address, limit: int) -> Pool:
        pool = pools.get(address)
        if pool is None:
            if self._closed:
                raise StoreUnavailable(CLOSED)
            pool = pools[address] = Pool(self._settings, address, limit=limit, greet=self._greet)
        return pool

    async def _greet(self, address: Address, connection: Connection) -> None:
        """Refuses a server that is no master, and, at the first meeting, one that cannot keep tasks."""
        questions: list[Command] = [("INFO",)] if address not in self._met else []
        role, *info = await exchange(connection, [("ROLE",), *questions])
        for answer in info:
            if not is_forbidden(answer) and (problem := objection(fields(answer), self._settings)):
                raise problem
        check_master(role)
        self._met.add(address)
