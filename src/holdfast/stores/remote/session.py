"""The connections of one event loop to a gateway: kept open, bounded, dropped when anything about them is in doubt."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.stores.remote.http import Answer, AnswerReader, EndedEarly
from holdfast.stores.remote.urls import RemoteSettings
from holdfast.stores.sessions import LoopSession

#: Calls that are under way at once: they are short, and more of them would only wait in the gateway.
CALL_CONNECTIONS: Final = 32
#: Each one who waits for a bell needs a connection of its own.
WAITING_CONNECTIONS: Final = 1_024
CONNECT_SECONDS: Final = 5.0
#: A connection that was idle for longer may have been forgotten by something on the way that does not say so.
IDLE_SECONDS: Final = 60.0
_READ_BYTES: Final = 256 * 1024
_CLOSE_SECONDS: Final = 5.0


class ClosedWhileIdle(Exception):
    """The gateway has closed a connection that was kept, as it may at any time; on a new one the call may go well."""


class Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def is_open(self) -> bool:
        """Whether nothing is known of its end."""
        return not self._reader.at_eof() and not self._writer.transport.is_closing()

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
        """Ends it without waiting for anybody."""
        self._writer.transport.abort()


class Session(LoopSession):
    """The connections of one event loop; they end with it."""

    def __init__(self, settings: RemoteSettings, tls: Callable[[], ssl.SSLContext | None]) -> None:
        super().__init__()
        self._settings = settings
        self._tls = tls
        self._idle: list[tuple[float, Connection]] = []
        self._calling = asyncio.Semaphore(CALL_CONNECTIONS)
        self._listening = asyncio.Semaphore(WAITING_CONNECTIONS)
        self._waiting: set[Connection] = set()
        #: How many calls have begun and not ended, those between two tries included.
        self.under_way = 0
        self.closed = False

    async def exchange(self, request: bytes) -> Answer:
        """One try at a call; `ClosedWhileIdle` if it should have another one at once."""
        async with self._calling:
            return await self._exchange(request, *await self._take())

    async def wait(self, request: bytes) -> Answer:
        """The same for a call that may take long, where it holds up nobody."""
        async with self._listening:
            connection, was_idle = await self._take()
            self._waiting.add(connection)
            try:
                if self.closed:  # while it was being made: nobody else would end it
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
                self._drop_idle()  # the others have had the same fate, or will have it soon
                raise ClosedWhileIdle from error
            raise
        self._give_back(connection, answer)
        return answer

    async def _take(self) -> tuple[Connection, bool]:
        """A connection, and whether it was idle before."""
        oldest = self.loop.time() - IDLE_SECONDS
        while self._idle:
            # The one used last: the others grow old.
            since, connection = self._idle.pop()
            if since >= oldest and connection.is_open:
                return connection, True
            connection.drop()
        return await self._connected(), False

    async def _connected(self) -> Connection:
        settings = self._settings
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                settings.host, settings.port, ssl=self._tls(), limit=_READ_BYTES
            )
        return Connection(reader, writer)

    def _give_back(self, connection: Connection, answer: Answer) -> None:
        if answer.keeps and not self.closed:
            self._idle.append((self.loop.time(), connection))
        else:
            connection.drop()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop()[1].drop()

    async def _end(self) -> None:
        self.closed = True
        for connection in list(self._waiting):
            connection.drop()
        deadline = self.loop.time() + _CLOSE_SECONDS
        while self.under_way and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self._drop_idle()


def _closed_by_then(error: BaseException) -> bool:
    """Whether this is how a connection looks that the other side has closed before it got our request."""
    return isinstance(error, ConnectionError) or (isinstance(error, EndedEarly) and error.nothing_came)
