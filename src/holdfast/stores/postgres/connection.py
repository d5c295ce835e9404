"""Connections: made, greeted, used for exchanges, and dropped when anything about them is in doubt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGcancel
from psycopg.waiting import wait_async

from holdfast.stores.connections import Movement
from holdfast.stores.postgres.urls import Address, Login, PostgresSettings

T = TypeVar("T")

CONNECT_SECONDS: Final = 2.0
OLDEST: Final = 14
_IDLE_IN_TRANSACTION_MS: Final = 10_000
#: psycopg looks up from its wait this often, for the sake of Ctrl-C; with asyncio there is no need.
_LOOK_UP_SECONDS: Final = 3_600.0
#: What every session of ours has. Never a statement_timeout: it would break off the wait for a standby, which the
#: server reports as success. `local` is what calls that need no more get; the others ask for more themselves. Functions
#: look again at what others have changed meanwhile, which no other level of isolation lets them see.
_SESSION: Final = {
    "default_transaction_isolation": "'read committed'",
    "statement_timeout": "'0'",
    "lock_timeout": "%s",
    "idle_in_transaction_session_timeout": f"'{_IDLE_IN_TRANSACTION_MS}'",
    "synchronous_commit": "'local'",
    "client_min_messages": "'warning'",
    "jit": "'off'",
}
#: Behind a pooler a session is not ours: settings would stay there for the next client, so none are made.
GREETING: Final = "SELECT pg_backend_pid(), CASE WHEN pg_backend_pid() = %s THEN {settings} END".format(
    settings=" || ".join(f"set_config('{name}', {value}, false)" for name, value in _SESSION.items())
)


class Unconfirmed(psycopg.OperationalError):
    """The server broke off its wait for a standby: committed here, and perhaps nowhere else."""


class NoStandbys(psycopg.OperationalError):
    """Refused: the server has no synchronous standby, and the level is `strict`."""


class TooOld(psycopg.OperationalError):
    """A server of a version that cannot be used."""


class NoPrimary(psycopg.OperationalError):
    """None of the servers took us; `reasons` says why, for each."""

    def __init__(self, reasons: Sequence[tuple[Address, BaseException]]) -> None:
        super().__init__("; ".join(f"{address}: {reason}" for address, reason in reasons))
        self.reasons = reasons


class Connection(AsyncConnection[tuple[Any, ...]]):
    """A connection that is closed when a wait on it is broken off.

    psycopg would ask the server to cancel instead, and a cancelled wait for a standby looks like success.
    """

    address: Address
    #: Whether a pooler such as pgbouncer stands between us and the server.
    pooled = False
    #: Whether a thread uses it: what is freed under its hands would take the process with it.
    in_thread = False
    #: Whether the statement under way changes nothing, so that it may be cancelled.
    only_reads = False
    _unconfirmed = False
    _cursor: AsyncCursor[tuple[Any, ...]] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.movement = Movement()

    async def wait(self, gen: PQGen[T], interval: float = _LOOK_UP_SECONDS, timeout: float | None = None) -> T:
        """Drives the exchange to its end, or ends the connection."""
        del interval
        try:
            return await wait_async(self._noted(gen), self.pgconn.socket, interval=_LOOK_UP_SECONDS, timeout=timeout)
        except Exception:
            raise
        except BaseException:
            if self.only_reads:
                self._stop_in_server()
            self.drop()
            raise

    def _stop_in_server(self) -> None:
        """Asks for an end of the statement, without waiting for it."""
        with suppress(psycopg.Error):
            request = self.pgconn.get_cancel()
            threading.Thread(target=_send, args=(request,), name="holdfast-cancel", daemon=True).start()

    def _noted(self, gen: PQGen[T]) -> PQGen[T]:
        """The exchange, each of whose steps is taken because bytes came or could be sent."""
        now = asyncio.get_running_loop().time
        try:
            state = next(gen)
            while True:
                ready = yield state
                self.movement.at = now()
                state = gen.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer

    async def ask(
        self, statement: str, arguments: Sequence[Any] = (), *, prepare: bool | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows that one statement gives; it has been committed when they are returned."""
        if self._cursor is None:
            self._cursor = self.cursor(binary=True)
        await self._cursor.execute(statement, arguments or None, prepare=prepare)
        rows = await self._cursor.fetchall()
        self.check_confirmed()
        return rows

    def check_confirmed(self) -> None:
        """Raises `Unconfirmed` if the server has not waited for its standby to the end."""
        if self._unconfirmed:
            self.drop()
            raise Unconfirmed("the wait for a standby was broken off")

    def is_at_rest(self) -> bool:
        """Whether it is open, as far as we know, with nothing under way."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    def is_fit(self) -> bool:
        """Whether it is at rest and was not ended by the server meanwhile."""
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            return False
        return self.is_at_rest()

    def drop(self) -> None:
        """Ends the connection without waiting, and without asking PostgreSQL to cancel the query."""
        if not self.in_thread:
            self.pgconn.finish()

    def watch(self) -> None:
        """Begins to listen for the server's warnings."""
        self.add_notice_handler(self._notice)

    def _notice(self, notice: Diagnostic) -> None:
        # By the name of the function in the server: the text may be in any language.
        if notice.source_function == "SyncRepWaitForLSN":
            self._unconfirmed = True


def _send(request: PGcancel) -> None:
    with suppress(psycopg.Error):
        request.cancel()


def connection_options(login: Login, address: Address, settings: PostgresSettings) -> dict[str, Any]:
    """What psycopg is told to connect to this server."""
    return {
        "application_name": "holdfast",
        "target_session_attrs": "read-write",
        **login.options,
        "host": address.host,
        "port": address.port,
        "dbname": login.database,
        "user": login.user,
        "password": login.password,
        "autocommit": True,
        "prepare_threshold": 0 if settings.prepare else None,
    }


async def connected(login: Login, address: Address, settings: PostgresSettings) -> Connection:
    """A new connection to this server, greeted."""
    async with asyncio.timeout(CONNECT_SECONDS):
        connection = await Connection.connect(**connection_options(login, address, settings))
        try:
            connection.address = address
            connection.watch()
            await _greet(connection, settings.lock_timeout_ms)
        except BaseException:
            connection.drop()
            raise
    return connection


async def _greet(connection: Connection, lock_timeout_ms: int) -> None:
    if connection.info.server_version < OLDEST * 10_000:
        raise TooOld(f"PostgreSQL {connection.info.server_version // 10_000} is too old; use {OLDEST} or newer")
    # A pooler makes up the number that it tells at the beginning.
    told = connection.info.backend_pid
    ((backend, _),) = await connection.ask(GREETING, (told, str(lock_timeout_ms)), prepare=False)
    connection.pooled = backend != told


class PrimaryFinder:
    """Connections to the primary among the servers of one login; the one that answered last is asked first."""

    def __init__(self, login: Login, settings: PostgresSettings) -> None:
        self._login = login
        self._settings = settings
        self._order = list(login.addresses)

    async def connect(self) -> Connection:
        """A connection to the primary; `NoPrimary` if none of the servers is one that takes us."""
        reasons: list[tuple[Address, BaseException]] = []
        for address in list(self._order):
            try:
                return await connected(self._login, address, self._settings)
            except (psycopg.Error, OSError, TimeoutError) as error:
                reasons.append((address, error))
                self._ask_last(address)
            except BaseException:
                self._ask_last(address)  # our caller had no more time for a server that says nothing
                raise
        raise NoPrimary(reasons)

    def doubt(self) -> None:
        """Asks the others first from now on."""
        self._ask_last(self._order[0])

    def _ask_last(self, address: Address) -> None:
        self._order.remove(address)
        self._order.append(address)
