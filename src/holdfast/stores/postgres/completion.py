"""Transactions in which a task writes and is finished: both are committed, or neither."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NoReturn
from uuid import UUID
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg import pq
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Literal

from holdfast.core.task import State
from holdfast.errors import ClaimLost, HoldfastError, StoreUnavailable, UsageError
from holdfast.runtime.interrupts import shielded
from holdfast.stores.connections import Deadline
from holdfast.stores.postgres.calls import Database, Session
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.errors import TROUBLES
from holdfast.stores.postgres.urls import PostgresSettings

_NOT_HERE: Final = (
    "transaction(): {what}() has no place inside the block, which commits at its end and rolls back if an exception "
    "leaves it; for a part that may fail, use: {nested}"
)
#: How long the server may take to hear that an interrupted statement is to stop.
_CANCEL_SECONDS: Final = 2.0


class LoopConnection(Connection):
    """For a coroutine."""

    async def commit(self) -> NoReturn:
        """Refused: what has been done so far would be kept even if the claim is lost."""
        raise UsageError(_NOT_HERE.format(what="commit", nested="async with conn.transaction():"))

    async def rollback(self) -> NoReturn:
        """Refused: the task would succeed without what it has done so far."""
        raise UsageError(_NOT_HERE.format(what="rollback", nested="async with conn.transaction():"))


class ThreadConnection(psycopg.Connection[tuple[Any, ...]]):
    """For a function in a thread."""

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As in psycopg, save that an interruption of the thread first has the server stop the statement."""
        with shielded(self._stop):
            return super().wait(*args, **kwargs)

    def _stop(self) -> None:
        threading.Thread(target=self._cancel_statement, name="holdfast-cancel", daemon=True).start()

    def _cancel_statement(self) -> None:
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=_CANCEL_SECONDS)

    def commit(self) -> NoReturn:
        """Refused, as in a coroutine."""
        raise UsageError(_NOT_HERE.format(what="commit", nested="with conn.transaction():"))

    def rollback(self) -> NoReturn:
        """Refused, as in a coroutine."""
        raise UsageError(_NOT_HERE.format(what="rollback", nested="with conn.transaction():"))


class Loan:
    """A connection lent to a task, under a new face: row factories and adapters of one task are not for the next."""

    def __init__(self, connection: Connection, face: type[LoopConnection | ThreadConnection]) -> None:
        self._lent = connection
        self._handlers = connection.pgconn.notice_handler, connection.pgconn.notify_handler
        #: What the task gets.
        self.connection = face(connection.pgconn)
        # Statements that one face prepares would be in the way of the next, and of poolers.
        self.connection.prepare_threshold = None
        connection.in_thread = face is ThreadConnection

    def end(self) -> Connection:
        """The connection again; the one that the task has is closed."""
        connection, self.connection.pgconn = self._lent, pq.PGconn()
        connection.pgconn.notice_handler, connection.pgconn.notify_handler = self._handlers
        connection.in_thread = False
        return connection


#: For asking what has become of a commit while all the others are lent to tasks.
_SPARE: Final = 2
#: Whatever the role's defaults are. In a stricter isolation every heartbeat would collide with the end of the claim; a
#: statement_timeout would break off the wait for a standby. By `holdfast.claim` the transaction is known again at its
#: end. A worker that stands still loses its locks when it loses its claims.
_BEGIN: Final = """
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('holdfast.claim', {token}, true), set_config('statement_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', {rest_ms}, true)
"""
#: One message: no session has to wait for a worker that stops between ack and commit.
_END: Final = "SELECT {schema}.complete({{now}}, {{id}}, {{token}}, {{result}}); COMMIT"
_CLAIM_LOST: Final = "HF001"
_ENDED_INSIDE: Final = "HF002"
_ENDED_INSIDE_WORDS: Final = (
    "transaction(): the transaction was ended inside the block, before its task; leave COMMIT and ROLLBACK to the block"
)


class Completions(Database):
    """The transactions of tasks, on connections that calls do not need and so never wait for."""

    def __init__(self, settings: PostgresSettings, now: Callable[[], int | None]) -> None:
        super().__init__(replace(settings, prepare=False, connections=settings.connections + _SPARE))
        self._now = now
        self._most = settings.connections
        self._rooms: WeakKeyDictionary[Session, asyncio.Semaphore] = WeakKeyDictionary()
        self._used: WeakSet[Connection] = WeakSet()

    @asynccontextmanager
    async def begun(self, token: str, rest_ms: int) -> AsyncIterator[Connection]:
        """A connection in a new transaction for this claim; it is closed if the transaction was not ended."""
        session = await self._sessions.get()
        async with self._rooms.setdefault(session, asyncio.Semaphore(self._most)), AsyncExitStack() as stack:
            deadline = Deadline(self.settings.deadline_ms)
            while True:
                try:
                    async with asyncio.timeout(deadline.for_a_try()):
                        connection = await self._begin(session, stack, token, rest_ms)
                        break
                except TROUBLES as error:
                    await self._before_retry(session, error, deadline, waits=self._statements.may_wait(safe=True))
            yield connection

    async def end(self, connection: Connection, task_id: str, token: str, result: bytes) -> None:
        """Acks and commits; `_InDoubt` if the outcome is unknown; after any other error nothing has happened."""
        statement = SQL(_END.format(schema=self.settings.quoted_schema)).format(
            now=Literal(self._now()), id=Literal(UUID(task_id)), token=Literal(token), result=Literal(result)
        )
        try:
            async with asyncio.timeout(self.settings.deadline_ms / 1000):
                await connection.execute(statement)
            connection.check_confirmed()
        except TROUBLES as error:
            if connection.closed:
                raise _InDoubt(self._failures.once(error)) from error
            raise

    async def outcome(self, task_id: str, token: str) -> str:
        """What has become of the claim: certain, and as durable as the level says."""
        ((outcome,),) = await self.call("outcome_of", UUID(task_id), token, safe=True)
        return str(outcome)

    async def _begin(self, session: Session, stack: AsyncExitStack, token: str, rest_ms: int) -> Connection:
        async with AsyncExitStack() as trying:
            connection = await trying.enter_async_context(session.connection())
            if connection in self._used and not connection.pooled:
                await connection.execute("DISCARD ALL")  # what the last task has set is not for the next
            self._used.add(connection)
            await connection.execute(SQL(_BEGIN).format(token=Literal(token), rest_ms=Literal(str(rest_ms))))
            await self._statements.begin(connection, waits_long=True)
            await stack.enter_async_context(trying.pop_all())
        return connection


class PostgresCompletion:
    """The transaction of one task: `begin`, then `finish` or `abandon`."""

    def __init__(self, completions: Completions, task_id: str, token: str, rest_ms: int) -> None:
        self._completions = completions
        self._task_id = task_id
        self._token = token
        self._rest_ms = rest_ms
        self._until_ended = AsyncExitStack()
        self._loan: Loan | None = None

    async def begin(self, *, threaded: bool) -> Any:
        """The connection, in a transaction that has begun: for a thread, or for the running event loop."""
        connection = await self._until_ended.enter_async_context(self._completions.begun(self._token, self._rest_ms))
        self._loan = Loan(connection, ThreadConnection if threaded else LoopConnection)
        return self._loan.connection

    async def finish(self, result: bytes, may_ask: Callable[[], bool]) -> None:
        """Acks the claim with this result and commits; whatever is raised, nothing was committed.

        If the answer to the commit was lost, the store is asked for it, as long as `may_ask` says so. Only the
        `StoreUnavailable` after that leaves it open.
        """
        connection = self._taken_back()
        try:
            async with self._until_ended:
                if connection.pgconn.transaction_status == TransactionStatus.IDLE:
                    raise UsageError(_ENDED_INSIDE_WORDS)
                await self._completions.end(connection, self._task_id, self._token, result)
        except _InDoubt as doubt:
            await self._find_out(doubt.trouble, may_ask)
        except psycopg.Error as error:
            self._refuse(error)

    async def abandon(self, *, at_once: bool) -> None:
        """Rolls back; `at_once` by closing the connection, without asking the server."""
        connection = self._taken_back()
        async with self._until_ended:
            if at_once:
                connection.drop()
                return
            with suppress(*TROUBLES):  # then it is closed when it is given back, and the server rolls back by itself
                async with asyncio.timeout(self._completions.settings.deadline_ms / 1000):
                    await connection.execute("ROLLBACK")

    def _taken_back(self) -> Connection:
        if self._loan is None:
            raise RuntimeError("the transaction has not begun")
        return self._loan.end()

    def _refuse(self, error: psycopg.Error) -> NoReturn:
        if error.sqlstate == _CLAIM_LOST:
            raise self._lost() from None
        if error.sqlstate == _ENDED_INSIDE:
            raise UsageError(_ENDED_INSIDE_WORDS) from None
        raise error

    async def _find_out(self, trouble: HoldfastError, may_ask: Callable[[], bool]) -> None:
        outcome = await self._outcome(may_ask)
        if outcome == State.CLAIMED:
            raise StoreUnavailable(f"{trouble}; nothing was committed") from None
        if outcome != State.SUCCEEDED:
            raise self._lost() from None

    async def _outcome(self, may_ask: Callable[[], bool]) -> str:
        while True:
            try:
                return await self._completions.outcome(self._task_id, self._token)
            except StoreUnavailable:
                if not may_ask():
                    raise

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"task {self._task_id}: the claim of this attempt has passed; its transaction was rolled back")


class _InDoubt(Exception):
    """The connection was lost before the answer to a commit came."""

    def __init__(self, trouble: HoldfastError) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble
