"""The connections to a server: kept open, bounded, dropped when anything about them is in doubt."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.stores.connections import IdleByProcess, IdleConnections, LoopSession, Try, watched
from holdfast.stores.remote.http import Answer, AnswerReader, BadAnswer, EndedEarly
from holdfast.stores.remote.urls import RemoteSettings

#: Calls that are under way at once: they are short, and more of them would only wait in the server.
CALL_CONNECTIONS: Final = 32
#: Each call that waits for a wake-up needs a connection of its own.
WAITING_CONNECTIONS: Final = 1_024
CONNECT_SECONDS: Final = 5.0
#: A connection that was idle for longer may have been forgotten by something on the way that does not say so.
IDLE_SECONDS: Final = 60.0
_READ_BYTES: Final = 256 * 1024
#: How long one try in the thread of a sync caller may take; there is another way after it, with a deadline of its own.
TRY_SECONDS: Final = 0.5
#: Blocking connections that are kept; more threads than this may call at the same time.
_MOST_IDLE: Final = 32
_DIRECT_READ_BYTES: Final = 64 * 1024


class ClosedWhileIdle(Exception):
    """The server has closed an idle connection, as it may at any time; on a new one the call may succeed."""


class Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.movement = watched(reader, writer)
        #: The event loop's time of its last answer.
        self.idle_since = 0.0

    def is_fit(self) -> bool:
        """Whether nothing is known of its end, and it was not idle for too long."""
        is_open = not self._reader.at_eof() and not self._writer.transport.is_closing()
        return is_open and self.idle_since >= asyncio.get_running_loop().time() - IDLE_SECONDS

    async def exchange(self, request: bytes) -> Answer:
        """Sends a request and reads its answer."""
        self._writer.write(request)
        await self._writer.drain()
        answers = AnswerReader()
        while data := await self._reader.read(_READ_BYTES):
            answer = answers.feed(data)
            if answer is not None:
                return answer
        return answers.end()

    def drop(self) -> None:
        """Ends the connection without waiting."""
        self._writer.transport.abort()


class Session(LoopSession):
    """The connections of one event loop; they end with it."""

    def __init__(self, settings: RemoteSettings, tls: Callable[[], ssl.SSLContext | None]) -> None:
        super().__init__()
        self._settings = settings
        self._tls = tls
        self._idle = IdleConnections(Connection.drop)
        self._calling = asyncio.Semaphore(CALL_CONNECTIONS)
        self._listening = asyncio.Semaphore(WAITING_CONNECTIONS)
        self._waiting: set[Connection] = set()
        self.closed = False

    async def exchange(self, request: bytes, a_try: Try) -> Answer:
        """One try at a call; `ClosedWhileIdle` if it should have another one at once."""
        async with self._calling:
            connection, was_idle = await self._take()
            a_try.follow(connection.movement)
            return await self._exchange(request, connection, was_idle)

    async def wait(self, request: bytes) -> Answer:
        """The same for a call that may take long, on a connection where it delays no other call."""
        async with self._listening:
            connection, was_idle = await self._take()
            self._waiting.add(connection)
            try:
                if self.closed:  # while the connection was being made: `close` has not seen it
                    connection.drop()
                return await self._exchange(request, connection, was_idle)
            finally:
                self._waiting.discard(connection)

    async def _exchange(self, request: bytes, connection: Connection, was_idle: bool) -> Answer:
        try:
            answer = await connection.exchange(request)
        except BaseException as error:
            # Whatever it was, an answer may still be on its way: the next caller must not get it.
            connection.drop()
            if was_idle and _closed_by_then(error):
                self._idle.clear()  # the others have had the same fate, or will have it soon
                raise ClosedWhileIdle from error
            raise
        self._give_back(connection, answer)
        return answer

    async def _take(self) -> tuple[Connection, bool]:
        """A connection, and whether it was idle before."""
        connection = self._idle.take(Connection.is_fit)
        return (connection, True) if connection is not None else (await self._connected(), False)

    async def _connected(self) -> Connection:
        settings = self._settings
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                settings.host, settings.port, ssl=self._tls(), limit=_READ_BYTES
            )
        return Connection(reader, writer)

    def _give_back(self, connection: Connection, answer: Answer) -> None:
        if answer.keeps:
            connection.idle_since = self.loop.time()
            self._idle.give_back(connection)
        else:
            connection.drop()

    async def _end(self) -> None:
        self.closed = True
        for connection in list(self._waiting):
            connection.drop()
        await self.calls_to_end()
        self._idle.close()


def _closed_by_then(error: BaseException) -> bool:
    """Whether this is how a connection looks that the other side has closed before it got our request."""
    return isinstance(error, ConnectionError) or (isinstance(error, EndedEarly) and error.nothing_came)


# -- in the thread of a sync caller ----------------------------------------------------------------------------


class DirectConnections:
    """Blocking connections to one server, each for one try at a call in the thread of a sync caller.

    Each process has its own. Whatever is out of the ordinary ends the connection and the try; the caller then goes the
    long way with the same ids, and finds what the try has done.
    """

    def __init__(self, settings: RemoteSettings, tls: Callable[[], ssl.SSLContext | None]) -> None:
        self._settings = settings
        self._tls = tls
        self._idle: IdleByProcess[socket.socket] = IdleByProcess(_end, _MOST_IDLE)

    def exchange(self, request: bytes, seconds: float) -> Answer | None:
        """The answer, or None if anything but an answer came."""
        idle = self._idle.own()
        connection: socket.socket | None = None
        try:
            connection = idle.take() or self._connected(seconds)
            connection.settimeout(seconds)
            connection.sendall(request)
            answer = _read(connection)
        except (OSError, EndedEarly, BadAnswer):
            _end(connection)
            return None
        except BaseException:  # An interrupt: the answer is still to come, and not for the next caller.
            _end(connection)
            raise
        if answer.keeps:
            idle.give_back(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Ends the connections of this process."""
        self._idle.close()

    def _connected(self, seconds: float) -> socket.socket:
        connection = socket.create_connection((self._settings.host, self._settings.port), seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._tls()
        return connection if tls is None else tls.wrap_socket(connection, server_hostname=self._settings.host)


def _read(connection: socket.socket) -> Answer:
    answers = AnswerReader()
    while data := connection.recv(_DIRECT_READ_BYTES):
        answer = answers.feed(data)
        if answer is not None:
            return answer
    return answers.end()


def _end(connection: socket.socket | None) -> None:
    if connection is not None:
        connection.close()
