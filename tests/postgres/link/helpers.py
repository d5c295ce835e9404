"""Functions that may be called twice, databases that are closed again, and a line that loses replies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psycopg

from holdfast.stores.postgres.calls import Database
from holdfast.stores.postgres.migrate import schema_text
from holdfast.stores.postgres.urls import parse_postgres_url
from tests.servers.callers import Callers
from tests.servers.loopback import HOST

#: `record` keeps a value under an id, the same id again changes nothing; `echo` gives back what it is given.
FUNCTIONS: Final = """
CREATE TABLE recorded (id text PRIMARY KEY, value bytea, backend integer DEFAULT pg_backend_pid(), level text);
CREATE FUNCTION record(an_id text, a_value bytea) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO recorded VALUES (an_id, a_value, DEFAULT, current_setting('synchronous_commit')) ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN 'created' ELSE 'known' END;
END $$;
CREATE FUNCTION levels() RETURNS TABLE (id text, level text) LANGUAGE sql SET search_path FROM CURRENT AS
    'SELECT id, level FROM recorded ORDER BY id';
CREATE FUNCTION record_quietly(an_id text) RETURNS SETOF text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN INSERT INTO recorded VALUES (an_id, '', DEFAULT, current_setting('synchronous_commit')) ON CONFLICT DO NOTHING;
END $$;
CREATE FUNCTION echo(texts text[], numbers bigint[], bytes bytea[], flag boolean)
    RETURNS TABLE (one text, two bigint, three bytea, four boolean) LANGUAGE sql AS
    'SELECT one, two, three, flag FROM unnest(texts, numbers, bytes) AS each(one, two, three)';
CREATE FUNCTION refuse(code text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'refused for a test' USING ERRCODE = code; END $$;
CREATE FUNCTION rest(seconds double precision) RETURNS boolean LANGUAGE sql AS
    'SELECT pg_sleep(seconds) IS NOT NULL';
"""


def make_schema(url: str, schema: str = "holdfast") -> None:
    """A schema with its tables and functions, and what the tests call."""
    text = schema_text(schema)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(f"SET search_path = {schema}".encode())
        connection.execute(text.tables.encode())
        connection.execute(text.functions.encode())
        connection.execute(FUNCTIONS.encode())


def with_options(url: str, **options: str | int) -> str:
    """The URL with these options."""
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


@asynccontextmanager
async def opened(url: str, **options: str | int) -> AsyncIterator[Database]:
    """A database behind this URL with these options."""
    database = Database(parse_postgres_url(with_options(url, **options)))
    try:
        yield database
    finally:
        await database.close()


async def ids_in(database: Database) -> set[str]:
    return {name for name, _ in await database.call("levels")}


def recording(database: Database, *, safe: bool = True, count: int = 4) -> Callers:
    """Callers that record ids."""
    return Callers(lambda name: database.call("record", name, b"", safe=safe), count)


class Wire:
    """A TCP line to a server, in a thread of its own, that can lose replies, and that sees requests to cancel."""

    _CANCEL_REQUEST: Final = (80877102).to_bytes(4, "big")
    #: The first byte of a reply to a statement: ParseComplete.
    _ANSWER: Final = b"1"

    def __init__(self, address: tuple[str, int], *, drop_every: int = 0) -> None:
        self.port = 0
        self.connections = 0
        self.answers = 0
        self.dropped = 0
        self.cancel_requests = 0
        #: While True, what comes from the server is kept, to be delivered in one piece.
        self.holding = False
        self.held = b""
        self._address = address
        self._drop_every = drop_every
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def url_for(self, url: str, port: int) -> str:
        """This URL with the line instead of the server."""
        return url.replace(f":{port}/", f":{self.port}/")

    def cut(self) -> int:
        """Ends all connections; returns how many there were."""

        async def abort() -> int:
            writers = list(self._writers)
            for writer in writers:
                writer.transport.abort()
            return len(writers) // 2

        return asyncio.run_coroutine_threadsafe(abort(), self._loop).result(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, to_server = await asyncio.open_connection(*self._address)
        self._writers |= {writer, to_server}
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._forth(reader, to_server), self._back(there, writer))
        for each in (writer, to_server):
            self._writers.discard(each)
            each.transport.abort()

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if data[4:8] == self._CANCEL_REQUEST:
                self.cancel_requests += 1
            writer.write(data)
        writer.write_eof()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            data += await self._held_back(reader, data)
            if data[:1] == self._ANSWER:
                self.answers += 1
                if self._drop_every and self.answers % self._drop_every == 0:
                    self.dropped += 1
                    raise ConnectionResetError
            writer.write(data)
        raise ConnectionResetError

    async def _held_back(self, reader: asyncio.StreamReader, first: bytes) -> bytes:
        more = b""
        while self.holding:
            self.held = first + more
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    more += await reader.read(65_536)
        return more
