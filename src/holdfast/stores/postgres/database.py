"""One way to a PostgreSQL server, or to the primary among several.

A database owns its connections (for each event loop its own, and never those of a parent process), repeats what may be
repeated until its deadline, has commits wait for standbys as the durability level says, and puts errors in our words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from psycopg import AsyncConnection

from holdfast.stores.postgres.durability import Statements
from holdfast.stores.postgres.failures import TROUBLES, Failures
from holdfast.stores.postgres.lines import Line, NoStandbys, Unconfirmed
from holdfast.stores.postgres.patience import Patience
from holdfast.stores.postgres.sessions import Session
from holdfast.stores.postgres.urls import PostgresSettings
from holdfast.stores.sessions import LoopSessions

T = TypeVar("T")


class Database(Protocol):
    """The way to the server."""

    #: Without the password, for messages.
    url: str
    settings: PostgresSettings

    async def call(self, function: str, *arguments: Any, safe: bool = False) -> list[tuple[Any, ...]]:
        """The rows of one function of our schema, run as one statement and one transaction.

        Sent again with the same arguments until it is answered or the deadline has passed. With `safe`, returns when
        it is as durable as the level says; otherwise the primary's own disk is enough.
        """
        ...

    async def run(
        self, work: Callable[[AsyncConnection[Any]], Awaitable[T]], *, safe: bool = True, seconds: float | None = None
    ) -> T:
        """What `work` returns, done in a transaction, and again if that was in vain.

        With `safe`, as durable as the level says. `seconds` is the time of one try; without it, as for a call.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """A transaction as durable as the level says, tried once; what its body raises is raised as it is.

        `StoreUnavailable` at its end may mean either outcome.
        """
        ...

    def ring(self, names: Iterable[str]) -> None:
        """Has one waiter for each of these bells woken, soon; never blocks and never fails."""
        ...

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until one of these bells is rung, True, or for so long, False; without a listener not as long."""
        ...

    async def close(self) -> None:
        """Finishes calls under way and ends the connections."""
        ...


def open_database(settings: PostgresSettings) -> Database:
    """A database with these settings; nothing is connected to before the first call."""
    return PostgresDatabase(settings)


class PostgresDatabase:
    """The one implementation."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.url = settings.url
        self.settings = settings
        self._failures = Failures(settings)
        self._statements = Statements(settings)
        self._sessions = LoopSessions(lambda: Session(settings))
        self._beginnings: set[asyncio.Task[None]] = set()

    async def call(self, function: str, *arguments: Any, safe: bool = False) -> list[tuple[Any, ...]]:
        """Runs a function, insisting."""
        session = await self._sessions.get()
        patience = Patience(self.settings.deadline_ms)
        waits = self._statements.may_wait(safe)
        while True:
            try:
                if waits:
                    exchange = partial(self._statements.call, function=function, arguments=arguments, safe=safe)
                    return await session.standbys.confirm(exchange, patience)
                async with asyncio.timeout(patience.for_a_try()), session.line() as line:
                    return await self._statements.call(line, function, arguments, safe)
            except TROUBLES as error:
                await self._mend(session, error, patience, function=function, waits=waits)

    async def run(
        self, work: Callable[[AsyncConnection[Any]], Awaitable[T]], *, safe: bool = True, seconds: float | None = None
    ) -> T:
        """Runs a transaction, insisting."""
        session = await self._sessions.get()
        patience = Patience(self.settings.deadline_ms)
        while True:
            try:
                limit = asyncio.timeout(seconds or patience.for_a_try())
                async with limit, self._transaction(session) as line:
                    if safe:
                        await self._statements.begin(line)
                    return await work(line)
            except TROUBLES as error:
                await self._mend(session, error, patience, waits=self._statements.may_wait(safe))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Runs a transaction once; what its body raises is not touched."""
        session = await self._sessions.get()
        body_failed = False
        try:
            async with self._transaction(session) as line:
                await self._statements.begin(line, patient=True)
                try:
                    yield line
                except BaseException:
                    body_failed = True
                    raise
        except TROUBLES as error:
            if body_failed:
                raise
            explained = await self._explained(session, error, waits=self._statements.may_wait(safe=True))
            raise self._failures.once(explained) from None

    def ring(self, names: Iterable[str]) -> None:
        """Rings from the running event loop."""
        session = self._sessions.known()
        if session is not None:
            session.bells.ring(names)
        elif not self._sessions.closed:
            beginning = asyncio.get_running_loop().create_task(self._ring_first(tuple(names)))
            self._beginnings.add(beginning)
            beginning.add_done_callback(self._beginnings.discard)

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Waits for a bell; trouble on the way only makes it a shorter or longer wait."""
        session = await self._sessions.get()
        return await session.bells.wait(names, timeout_ms)

    async def close(self) -> None:
        """Ends the connections of this process, those of other event loops too."""
        await self._sessions.close()

    @asynccontextmanager
    async def _transaction(self, session: Session) -> AsyncIterator[Line]:
        async with session.line() as line:
            async with asyncio.timeout(None) as limit, line.transaction():
                yield line
                # The commit must not take for ever; when time is up the connection is closed, and nothing is known.
                limit.reschedule(session.loop.time() + self.settings.deadline_ms / 1000)
            line.check_confirmed()

    async def _ring_first(self, names: Iterable[str]) -> None:
        """The first thing that this event loop does here is to ring: for a task in a transaction of the caller's."""
        (await self._sessions.get()).bells.ring(names)

    async def _mend(
        self, session: Session, error: BaseException, patience: Patience, *, function: str = "", waits: bool = False
    ) -> None:
        """Gets ready for the next try, or raises what there is to say."""
        refusal = self._failures.hopeless(error, function)
        if refusal is not None:
            raise refusal from None
        if patience.is_over():
            error = await self._explained(session, patience.most_telling(error), waits)
            raise self._failures.exhausted(error) from None
        if self._failures.is_about_the_server(error):
            session.forget()
        await patience.pause_after(error)

    async def _explained(self, session: Session, error: BaseException, waits: bool) -> BaseException:
        """The error, or what is behind it: what gives no answer, or holds a lock, may be waiting for a standby."""
        if waits and not isinstance(error, NoStandbys) and await session.standbys.are_awaited([]):
            return Unconfirmed("no standby has confirmed it in time")
        return error
