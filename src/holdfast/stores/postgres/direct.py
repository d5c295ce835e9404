"""Enqueues tasks in the thread of a sync caller: one statement on a blocking connection, with no event loop on the way.

These connections know nothing of retries, new primaries, standbys or poolers. Whatever is out of the ordinary ends the
connection and the try; the caller then uses `Store.enqueue` with the same ids, and finds what the try has done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from holdfast.runtime.forks import process
from holdfast.stores.connections import IdleByProcess, IdleConnections
from holdfast.stores.postgres.connection import GREETING, connection_options
from holdfast.stores.postgres.urls import Address, PostgresSettings
from holdfast.stores.postgres.wakeup import NOTIFY_EVERY_SECONDS

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Session

T = TypeVar("T")
Row = tuple[Any, ...]

#: How long one try may take; `Store.enqueue` has its whole deadline after it.
_TRY_SECONDS: Final = 0.5
#: The same for a try that first connects.
_CONNECTING_TRY_SECONDS: Final = 1.0
#: How often psycopg looks up from its wait, for the sake of Ctrl-C.
_LOOK_UP_SECONDS: Final = 0.1
#: After a try that failed, all calls go by `Store.enqueue` for this long: the next would only cost time.
_REST_SECONDS: Final = 5.0
#: More than this may take longer than a try on a slow connection.
_LARGEST_BYTES: Final = 64 * 1024
#: Idle connections that are kept; more threads than this may enqueue at the same time.
_MOST_IDLE: Final = 16


class BlockingConnection(psycopg.Connection[Row]):
    """A connection whose exchanges end with the try that they are part of."""

    address: Address
    #: The end of the try, on the monotonic clock.
    try_ends_at = 0.0
    _cursor: psycopg.Cursor[Row] | None = None

    def wait(self, gen: PQGen[T], interval: float = _LOOK_UP_SECONDS, timeout: float | None = None) -> T:
        """Drives the exchange to its end; who calls it drops the connection if that fails."""
        del interval, timeout
        left = max(self.try_ends_at - time.monotonic(), 0)
        return waiting.wait(gen, self.pgconn.socket, interval=_LOOK_UP_SECONDS, timeout=left)

    @classmethod
    def made(cls, options: dict[str, Any], try_ends_at: float) -> Self:
        """A new connection; `connect` of psycopg takes two seconds and more for a server that does not answer."""
        autocommit, prepare_threshold = options.pop("autocommit"), options.pop("prepare_threshold")
        left = max(try_ends_at - time.monotonic(), 0)
        connecting = generators.connect(make_conninfo("", **options))
        connection = cls(waiting.wait_conn(connecting, interval=_LOOK_UP_SECONDS, timeout=left))
        connection.try_ends_at = try_ends_at
        connection.autocommit, connection.prepare_threshold = autocommit, prepare_threshold
        return connection

    def ask(self, statement: str, arguments: Iterable[Any]) -> list[Row]:
        """The rows of one statement, which is committed when they are returned."""
        if self._cursor is None:
            self._cursor = self.cursor(binary=True)
        return self._cursor.execute(statement, tuple(arguments)).fetchall()

    def is_fit(self) -> bool:
        """Whether nothing is under way, and the server has not ended it."""
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            return False
        return self.pgconn.transaction_status == TransactionStatus.IDLE


class _Home(NamedTuple):
    """Where the last enqueue of an event loop went well, in which process, and the session of that loop."""

    process: tuple[int, int]
    address: Address
    session: Session


class DirectCalls:
    """The blocking connections of a process to the primary that its event loops have found."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._statement = f"SELECT * FROM {settings.quoted_schema}.enqueue(%s, %s, %s)"  # noqa: S608
        self._home: _Home | None = None
        self._idle: IdleByProcess[BlockingConnection] = IdleByProcess(_drop, _MOST_IDLE)
        self._unsent: set[str] = set()
        #: The home on whose event loop wake-ups are being sent.
        self._sending: _Home | None = None
        self._rests_until = 0.0

    def know(self, address: Address, session: Session) -> None:
        """Remembers where a call of this event loop went well, and without a pooler."""
        home = self._home
        if home is None or home.address is not address or home.session is not session:
            self._home = _Home(process(), address, session)

    def enqueue(self, arguments: tuple[Any, ...], size: int, wakeups: Iterable[str]) -> list[Row] | None:
        """The rows of `enqueue`, committed, and waiters told; None if anything at all is out of the ordinary.

        `size` is that of the payloads, in bytes.
        """
        home = self._home
        if home is None or home.process != process() or not self._may_try(size):
            return None
        idle = self._idle.own()
        connection: BlockingConnection | None = None
        try:
            connection = _taken(idle, home.address) or self._connected(home.address)
            rows = connection.ask(self._statement, arguments)
        except (psycopg.Error, OSError):
            self._home, self._rests_until = None, time.monotonic() + _REST_SECONDS
            _drop(connection)
            return None
        except BaseException:
            _drop(connection)
            raise
        if connection.is_fit():
            idle.give_back(connection)
        else:
            _drop(connection)
        self._notify(home, wakeups)
        return rows

    def close(self) -> None:
        """Ends the connections of this process."""
        self._idle.close()

    def _may_try(self, size: int) -> bool:
        if self._idle.closed or self._settings.durability != "local" or size > _LARGEST_BYTES:
            return False
        return not self._rests_until or time.monotonic() >= self._rests_until

    def _connected(self, address: Address) -> BlockingConnection:
        settings = self._settings
        options = connection_options(settings.login, address, settings)
        connection = BlockingConnection.made(options, time.monotonic() + _CONNECTING_TRY_SECONDS)
        connection.address = address
        try:
            connection.ask(GREETING, (connection.info.backend_pid, str(settings.lock_timeout_ms)))
        except BaseException:
            _drop(connection)
            raise
        return connection

    # -- wake-ups: sent by the event loop of the home, the first at once, the others together -------------------

    def _notify(self, home: _Home, wakeups: Iterable[str]) -> None:
        self._unsent.update(wakeups)
        if self._sending is not home:
            self._sending = home
            try:
                home.session.loop.call_soon_threadsafe(self._send, home)
            except RuntimeError:  # that event loop is closed: a poll finds the task
                self._home = self._sending = None

    def _send(self, home: _Home) -> None:
        if self._unsent:
            names, self._unsent = self._unsent, set()
            home.session.wakeups.notify(names)
            asyncio.get_running_loop().call_later(NOTIFY_EVERY_SECONDS, self._send, home)
            return
        if self._sending is home:
            self._sending = None
            if self._unsent:  # of a thread that came in between
                self._notify(home, ())


def _taken(idle: IdleConnections[BlockingConnection], address: Address) -> BlockingConnection | None:
    connection = idle.take(lambda known: known.address == address and known.is_fit())
    if connection is not None:
        connection.try_ends_at = time.monotonic() + _TRY_SECONDS
    return connection


def _drop(connection: BlockingConnection | None) -> None:
    """Ends a connection without waiting."""
    if connection is not None:
        connection.pgconn.finish()
