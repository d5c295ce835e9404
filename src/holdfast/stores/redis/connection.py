"""Connections to one server: made, bounded, reused, and dropped when anything about them is in doubt.

redis-py's connections are used without its clients: a client's retries would hide what happened, its timeouts end a
blocking pop in the middle, and each call costs twice the processor time.
"""
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import Connection as SyncConnection
from redis.connection import SSLConnection as SyncSSLConnection
from redis.exceptions import InvalidResponse, NoPermissionError, RedisError, ResponseError

from holdfast.errors import StoreUnavailable
from holdfast.stores.connections import CLOSED, IdleByProcess, Try, watched
from holdfast.stores.redis.doctor import check_master
from holdfast.stores.redis.urls import Address, RedisSettings

if TYPE_CHECKING:
    from holdfast.stores.redis.scripts import Script

Word = bytes | str | int
Command = Sequence[Word]
Greeting = Callable[[Address, Connection], Awaitable[None]]

CONNECT_SECONDS: Final = 2.0
#: How long one try of a sync caller may be silent; `Link.call` has its whole deadline after it.
_BLOCKING_SECONDS: Final = 0.5
#: Idle blocking connections that are kept; more threads than this may call at the same time.
_MOST_IDLE: Final = 32
_READ_BYTES: Final = 65_536
#: What the parser gives while a reply is not complete.
_INCOMPLETE: Final = object()

try:
    import hiredis
except ImportError:  # What redis-py has instead is slower, and does the same.
    _pack: Callable[[Any], bytes] | None = None
else:
    _pack = hiredis.pack_command


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

    async def exchange(self, commands: Sequence[Command], a_try: Try | None = None) -> list[Any]:
        """Sends the commands in one go and reads one reply each; a refusal is returned in its place, not raised."""
        async with self._room:
            connection = await self._take()
            self._lent.add(connection)
            if a_try is not None:
                a_try.follow(connection.movement)  # type: ignore[attr-defined]  # `connected` has set it
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


def packed(connection: Connection, commands: Sequence[Command]) -> list[bytes]:
    """The commands as they are sent."""
    if _pack is None:
        return connection.pack_commands(commands)
    return [_pack(tuple(command)) for command in commands]


async def connected(settings: RedisSettings, address: Address, greet: Greeting | None = None) -> Connection:
    """A new connection, logged in, and greeted if there is a greeting."""
    connection = _connection(settings, address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.connect()
            connection.movement = watched(connection._reader, connection._writer)  # type: ignore[attr-defined, arg-type]  # noqa: SLF001
            if greet:
                await greet(address, connection)
    except BaseException:
        await drop(connection)
        raise
    return connection


async def drop(connection: Connection) -> None:
    """Ends a connection without waiting for the server."""
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


class SyncSocket:
    """A connection of a sync caller: opened by redis-py, and then used directly, since its way to a reply is long."""

    def __init__(self, connection: SyncConnection, address: Address) -> None:
        self.address = address
        self._connection = connection
        if _pack is None:
            return
        self._socket = cast("socket.socket", connection._sock)  # noqa: SLF001  (redis-py has no other way to it)
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=ResponseError, notEnoughData=_INCOMPLETE
        )
        if not isinstance(connection, SyncSSLConnection):
            # The kernel's timeouts need no `poll` before each call; those of Python stay with TLS, which would wait on.
            limit = struct.pack("ll", *divmod(int(_BLOCKING_SECONDS * 1e6), 1_000_000))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, limit)
            self._socket.settimeout(None)

    def exchange(self, command: Command) -> Any:
        """The reply; a refusal is raised. Closed after an error or an interrupt: a reply may still come."""
        try:
            reply = self._exchange(command)
            if isinstance(reply, ResponseError):
                raise reply
        except BaseException:
            self.close()
            raise
        return reply

    def close(self) -> None:
        """Ends the connection."""
        self._connection.disconnect()

    def _exchange(self, command: Command) -> Any:
        if _pack is None:
            self._connection.send_command(*command, check_health=False)
            return self._connection.read_response()
        self._socket.sendall(_pack(command))
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
            reply = self._reader.gets()
            if reply is not _INCOMPLETE:
                return reply


class BlockingConnections:
    """Connections to one server at a time for sync callers, in their own threads; each process has its own.

    They know nothing of retries, redirections or new masters. Whatever is out of the ordinary ends the connection and
    the try; the caller then uses `Link.call` with the same ids, and finds what the try has done.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._idle = IdleByProcess(SyncSocket.close, _MOST_IDLE)

    def call(self, address: Address, script: Script, words: Sequence[Word]) -> Any:
        """The reply, or None if anything but a reply came."""
        idle = self._idle.own()
        try:
            # Those to another server, the master of yesterday, are ended.
            connection = idle.take(lambda known: known.address == address) or self._connected(address)
            reply = connection.exchange(("EVALSHA", script.sha, 1, *words))
        except (RedisError, OSError):
            return None
        idle.give_back(connection)
        return reply

    def close(self) -> None:
        """Ends the connections of this process."""
        self._idle.close()

    def _connected(self, address: Address) -> SyncSocket:
        limits = {"socket_timeout": _BLOCKING_SECONDS, "socket_connect_timeout": _BLOCKING_SECONDS}
        options = connection_options(self._settings, address) | limits
        connection: SyncConnection = SyncSSLConnection(**options) if self._settings.tls else SyncConnection(**options)
        connection.connect()
        connection.send_command("ROLE")
        try:
            role = connection.read_response()
        except NoPermissionError as refusal:
            role = refusal
        check_master(role)
        return SyncSocket(connection, address)
