"""Calls of the functions of the schema, which is made, or brought up to date, before the first of them.

A database owns its connections (for each event loop its own, and never those of a parent process), repeats what may be
repeated until its deadline, has commits wait for standbys as the durability level says, and explains errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.stores.connections import CLOSED, Deadline, IdleConnections, LoopSession, LoopSessions, Try
from holdfast.stores.contract import Finding
from holdfast.stores.postgres.connection import Connection, NoStandbys, PrimaryFinder, Unconfirmed
from holdfast.stores.postgres.direct import DirectCalls
from holdfast.stores.postgres.durability import Standbys, Statements
from holdfast.stores.postgres.errors import TROUBLES, Failures, NotMigrated
from holdfast.stores.postgres.migrate import Migrator
from holdfast.stores.postgres.urls import PostgresSettings
from holdfast.stores.postgres.wakeup import Wakeups

#: Connections that are never taken by calls which wait for a standby, so that leases can still be extended.
_ALWAYS_FREE: Final = 2


class Session(LoopSession):
    """The connections of one event loop; they end with it."""

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__()
        self.finder = PrimaryFinder(settings.login, settings)
        self.wakeups = Wakeups(settings)
        self.standbys = Standbys(self, max(1, settings.connections - _ALWAYS_FREE))
        #: For calls that may wait for transactions of others, and for searches: the rest stays free for leases.
        self.lockers = asyncio.Semaphore(max(1, settings.connections // 2))
        self.searches = asyncio.Semaphore(max(1, settings.connections // 4))
        self._room = asyncio.Semaphore(settings.connections)
        self._idle = IdleConnections(Connection.drop)
        self._lent: set[Connection] = set()

    @asynccontextmanager
    async def connection(self, a_try: Try | None = None) -> AsyncIterator[Connection]:
        """A connection for one exchange; not used again if it is not fit for it."""
        with self.call():
            async with self._room:
                connection = await self._take()
                self._lent.add(connection)
                if a_try is not None:
                    a_try.follow(connection.movement)
                try:
                    yield connection
                finally:
                    self._lent.discard(connection)
                    self._give_back(connection)

    def forget(self) -> None:
        """Drops what is idle, and looks for the primary again."""
        self._idle.clear()
        self.finder.doubt()
        self.wakeups.doubt()

    async def _end(self) -> None:
        await self.wakeups.close()
        await self.calls_to_end()
        self._idle.close()
        for connection in list(self._lent):
            connection.drop()

    async def _take(self) -> Connection:
        connection = self._idle.take(Connection.is_fit)
        if connection is not None:
            return connection
        if self._idle.closed:
            raise StoreUnavailable(CLOSED)
        return await self.finder.connect()

    def _give_back(self, connection: Connection) -> None:
        if connection.is_at_rest():
            self._idle.give_back(connection)
        else:
            connection.drop()


T = TypeVar("T")

#: Functions that change nothing: what we do not wait for any more is stopped in the server too.
_READS: Final = frozenset({"find", "get", "depths", "get_documents", "get_discards", "all_workers"})
#: What takes too long once would take too long again, and the server would have all of it to do.
_SEARCHES: Final = frozenset({"find"})


class Database:
    """A PostgreSQL server, or the primary among several; nothing is connected to before the first call."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.url = settings.url
        self.settings = settings
        self._failures = Failures(settings)
        self._statements = Statements(settings)
        self._sessions = LoopSessions(lambda: Session(settings))
        self.direct = DirectCalls(settings)
        self._beginnings: set[asyncio.Task[None]] = set()

    def deadline(self) -> Deadline:
        """The time of a call that begins now."""
        return Deadline(self.settings.deadline_ms)

    async def call(
        self,
        function: str,
        *arguments: Any,
        safe: bool = False,
        may_lock: bool = False,
        deadline: Deadline | None = None,
    ) -> list[tuple[Any, ...]]:
        """The rows of one function of our schema, run as one statement and one transaction.

        Sent again with the same arguments until it is answered or the deadline has passed: that of the caller, or one
        of its own. With `safe`, returns when it is as durable as the level says; otherwise the primary's own disk is
        enough. `may_lock` is for calls that may have to wait for a transaction of another session: they never take all
        connections.
        """
        session = await self._sessions.get()
        deadline = deadline or self.deadline()
        with session.call():
            if not may_lock and function not in _SEARCHES:
                return await self._retry(session, function, arguments, safe, deadline)
            room = session.lockers if may_lock else session.searches
            try:
                async with asyncio.timeout(max(deadline.left(), 0)):
                    await room.acquire()
            except TimeoutError as error:
                raise self._failures.exhausted(error, deadline.spent_ms()) from None
            try:
                return await self._retry(session, function, arguments, safe, deadline)
            finally:
                room.release()

    async def _retry(
        self, session: Session, function: str, arguments: tuple[Any, ...], safe: bool, deadline: Deadline
    ) -> list[tuple[Any, ...]]:
        waits = self._statements.may_wait(safe)
        while True:
            try:
                if waits:
                    exchange = partial(self._statements.call, function=function, arguments=arguments, safe=safe)
                    rows = await session.standbys.confirm(exchange, deadline)
                else:
                    async with Try(deadline.for_a_try()) as a_try, session.connection(a_try) as connection:
                        connection.only_reads = function in _READS
                        rows = await self._statements.call(connection, function, arguments, safe)
                        if function == "enqueue" and not connection.pooled:
                            self.direct.know(connection.address, session)
                self._failures.answered.add(function)
                return rows
            except TROUBLES as error:
                if isinstance(error, TimeoutError) and function in _SEARCHES:
                    raise self._failures.once(error) from None
                await self._before_retry(session, error, deadline, function=function, waits=waits)

    async def run(
        self,
        work: Callable[[AsyncConnection[Any]], Awaitable[T]],
        *,
        safe: bool = True,
        seconds: float | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        """What `work` returns, done in a transaction, and again if that was in vain.

        With `safe`, as durable as the level says. `seconds` is the time of one try; without it, as for a call.
        """
        session = await self._sessions.get()
        deadline = deadline or self.deadline()
        while True:
            try:
                a_try = Try(seconds or deadline.for_a_try())
                async with a_try, self._transaction(session, a_try) as connection:
                    if safe:
                        await self._statements.begin(connection)
                    return await work(connection)
            except TROUBLES as error:
                await self._before_retry(session, error, deadline, waits=self._statements.may_wait(safe))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction as durable as the level says, tried once; what its body raises is raised as it is.

        `StoreUnavailable` at its end may mean either outcome.
        """
        session = await self._sessions.get()
        body_failed = False
        try:
            async with self._transaction(session) as connection:
                await self._statements.begin(connection, waits_long=True)
                try:
                    yield connection
                except BaseException:
                    body_failed = True
                    raise
        except TROUBLES as error:
            if body_failed:
                raise
            explained = await self._explained(session, error, waits=self._statements.may_wait(safe=True))
            raise self._failures.once(explained) from None

    def notify(self, names: Iterable[str]) -> None:
        """Has one waiter for each of these woken, soon; never blocks and never fails."""
        session = self._sessions.known()
        if session is not None:
            session.wakeups.notify(names)
        elif not self._sessions.closed:
            beginning = asyncio.get_running_loop().create_task(self._notify_first(tuple(names)))
            self._beginnings.add(beginning)
            beginning.add_done_callback(self._beginnings.discard)

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Whether one of these wake-ups came within this time; without a listener it waits not as long."""
        session = await self._sessions.get()
        return await session.wakeups.wait(names, timeout_ms)

    async def close(self) -> None:
        """Finishes calls under way and ends the connections of this process, those of other event loops too."""
        self.direct.close()
        await self._sessions.close()

    @asynccontextmanager
    async def _transaction(self, session: Session, a_try: Try | None = None) -> AsyncIterator[Connection]:
        async with session.connection(a_try) as connection:
            async with asyncio.timeout(None) as limit, connection.transaction():
                yield connection
                # The commit must not take for ever; when time is up the connection is closed, and nothing is known.
                limit.reschedule(session.loop.time() + self.settings.deadline_ms / 1000)
            connection.check_confirmed()

    async def _notify_first(self, names: Iterable[str]) -> None:
        """For the first thing that this event loop does here: a task in a transaction of the caller."""
        (await self._sessions.get()).wakeups.notify(names)

    async def _before_retry(
        self, session: Session, error: BaseException, deadline: Deadline, *, function: str = "", waits: bool = False
    ) -> None:
        """Gets ready for the next try, or raises the error to tell."""
        refusal = self._failures.hopeless(error, function)
        if refusal is not None:
            raise refusal from None
        if deadline.is_over():
            error = await self._explained(session, deadline.most_telling(error), waits)
            raise self._failures.exhausted(error, deadline.spent_ms()) from None
        if self._failures.is_about_the_server(error):
            session.forget()
        await deadline.pause(error)

    async def _explained(self, session: Session, error: BaseException, waits: bool) -> BaseException:
        """The error, or what is behind it: what gives no answer, or holds a lock, may be waiting for a standby."""
        if waits and not isinstance(error, NoStandbys) and await session.standbys.are_awaited([]):
            return Unconfirmed("no standby has confirmed it in time")
        return error


_MIGRATION_SECONDS: Final = 60.0


class Calls:
    """The calls of one store."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._migrator = Migrator(database.settings.schema, database.url)
        self._migrated = False
        self._steps: list[str] = []
        self._under_way = 0
        #: Only the stepped clock of a test is sent along; otherwise the server's own decides.
        self._clock = None if isinstance(clock, SystemClock) else clock

    def now(self) -> int | None:
        """The time that a test hands in; None for the server's own."""
        return None if self._clock is None else self._clock.now_ms()

    async def __call__(
        self, function: str, *args: Any, safe: bool = False, may_lock: bool = False
    ) -> list[tuple[Any, ...]]:
        """The rows of one function, as durable as the level says if it must be safe."""
        self._under_way += 1
        try:
            deadline = None if self._migrated else await self.prepare()
            try:
                return await self._database.call(function, *args, safe=safe, may_lock=may_lock, deadline=deadline)
            except NotMigrated:
                # Dropped, or of a version that has no place for us: the first is made again, the second is told.
                self._migrated = False
                deadline = await self.prepare()
                return await self._database.call(function, *args, safe=safe, may_lock=may_lock, deadline=deadline)
        finally:
            self._under_way -= 1

    async def prepare(self) -> Deadline:
        """Migrates at the first call, so that a new database needs no set-up; gives what time the call has left.

        The time that a migration takes is not counted.
        """
        deadline = self._database.deadline()
        if not self._migrated:
            # A look needs no standby, so that people can look when there is none.
            if await self._database.run(self._migrator.pending, safe=False, deadline=deadline):
                self._steps += await self._database.run(self._migrator.migrate, seconds=_MIGRATION_SECONDS)
                deadline = self._database.deadline()
            self._migrated = True
        return deadline

    async def migrate(self, *, dry_run: bool) -> list[str]:
        """The steps taken since this was last asked, or with `dry_run` those to take."""
        if dry_run:
            return await self._database.run(self._migrator.pending, safe=False)
        await self.prepare()
        steps, self._steps = self._steps, []
        return steps

    async def finding(self) -> Finding:
        """One connection about the schema."""
        return await self._database.run(self._migrator.finding, safe=False)

    async def finish(self) -> None:
        """Waits for the calls under way."""
        while self._under_way:  # noqa: ASYNC110  # Calls may come from other event loops, which one event cannot serve.
            await asyncio.sleep(0.005)
