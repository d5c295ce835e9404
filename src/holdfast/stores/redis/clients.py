"""Connections to one server: made, bounded, reused, and dropped when anything about them is in doubt.

redis-py's connections are used without its clients: a client's retries would hide what happened, its timeouts end a
blocking pop in the middle, and each call costs twice the processor time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import Connection as BlockingConnection
from redis.exceptions import ResponseError

from holdfast.errors import StoreUnavailable
from holdfast.stores.redis.urls import Address, RedisSettings
from holdfast.stores.sessions import CLOSED

Word = bytes | str | int
Command = Sequence[Word]
Greeting = Callable[[Address, Connection], Awaitable[None]]

CONNECT_SECONDS: Final = 2.0

try:
    from hiredis import pack_command
except ImportError:  # The slower way of redis-py does the same.
    _pack: Callable[[Any], bytes] | None = None
else:
    _pack = pack_command


class Pool:
    """Up to `limit` connections to one address, for one event loop."""

    def __init__(self, settings: RedisSettings, address: Address, *, limit: int, greet: Greeting) -> None:
        self.address = address
        self._settings = settings
        self._greet = greet
        self._room = asyncio.Semaphore(limit)
        self._idle: list[Connection] = []
        self._lent: set[Connection] = set()
        self._closed = False

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands in one go and reads one reply each; a refusal is returned in its place, not raised."""
        async with self._room:
            connection = await self._take()
            self._lent.add(connection)
            try:
                replies = await exchange(connection, commands)
            except BaseException:
                # Whatever it was, a reply may still be on its way: the next caller must not get it.
                await drop(connection)
                raise
            finally:
                self._lent.discard(connection)
            await self._give_back(connection)
            return replies

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._lent)

    async def forget(self) -> None:
        """Drops what is idle: the server behind it may be another one now."""
        while self._idle:
            await drop(self._idle.pop())

    async def close(self) -> None:
        """Ends all connections; calls that are under way lose theirs."""
        self._closed = True
        await self.forget()
        for connection in list(self._lent):
            await drop(connection)

    async def _take(self) -> Connection:
        while self._idle:
            # The one used last: the others may grow old and be closed by the server.
            connection = self._idle.pop()
            # What can be read before anything was asked is the end of the connection.
            if connection.is_connected and not await connection.can_read():
                return connection
            await drop(connection)
        if self._closed:
            raise StoreUnavailable(CLOSED)
        return await connected(self._settings, self.address, self._greet)

    async def _give_back(self, connection: Connection) -> None:
        if self._closed:
            await drop(connection)
        else:
            self._idle.append(connection)


async def exchange(connection: Connection, commands: Sequence[Command]) -> list[Any]:
    """One reply for each command, in one round trip; a refusal is returned in its place."""
    await connection.send_packed_command(packed(connection, commands), check_health=False)
    return [await _reply(connection) for _ in commands]


def packed(connection: Connection | BlockingConnection, commands: Sequence[Command]) -> list[bytes]:
    """The commands as they go over the line."""
    if _pack is None:
        return connection.pack_commands(commands)
    return [_pack(tuple(command)) for command in commands]


async def connected(settings: RedisSettings, address: Address, greet: Greeting | None = None) -> Connection:
    """A new connection, logged in, and greeted if so wished."""
    connection = _connection(settings, address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.connect()  # type: ignore[no-untyped-call]
            if greet:
                await greet(address, connection)
    except BaseException:
        await drop(connection)
        raise
    return connection


async def drop(connection: Connection) -> None:
    """Ends a connection without waiting for anybody."""
    writer = connection._writer  # noqa: SLF001  (redis-py has no other way to it)
    if writer and writer.get_extra_info("ssl_object"):
        # To close TLS means to wait for the server's farewell, for longer than the event loop may live.
        writer.transport.abort()
    await connection.disconnect(nowait=True)


async def ask(settings: RedisSettings, address: Address, *words: Word, seconds: float = CONNECT_SECONDS) -> Any:
    """One command on a connection of its own; a refusal is raised."""
    async with asyncio.timeout(seconds):
        connection = await connected(settings, address)
        try:
            (reply,) = await exchange(connection, [words])
        finally:
            await drop(connection)
    if isinstance(reply, ResponseError):
        raise reply
    return reply


async def _reply(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as refusal:
        return refusal


def connection_options(settings: RedisSettings, address: Address) -> dict[str, Any]:
    """How a connection to this server is made, sync or async."""
    options: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": settings.database,
        "username": settings.username,
        "password": settings.password,
        "protocol": settings.protocol,
        # One timeout around the whole exchange is ours; redis-py's own would cost one for each read and write.
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
        "driver_info": None,
    }
    return options | {"ssl_ca_certs": settings.ca or None} if settings.tls else options


def _connection(settings: RedisSettings, address: Address) -> Connection:
    options = connection_options(settings, address) | {"retry": Retry(NoBackoff(), 0)}
    return SSLConnection(**options) if settings.tls else Connection(**options)
