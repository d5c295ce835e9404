"""Transactions of callers: what we need of them, for each library. The type tells which library it is of.

No library is imported that the caller does not use.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from holdfast.errors import BadOption

if TYPE_CHECKING:
    from sqlalchemy import Connection as SqlAlchemyConnection
    from sqlalchemy.orm import Session as SqlAlchemySession

Row = tuple[Any, ...]

#: All drivers know a text, and send it as such if they are told what it is.
_STATEMENT: Final = "SELECT * FROM {function}(CAST({mark} AS text))"
_SYNC: Final = b"SELECT 1"
#: Where a session or a connection of SQLAlchemy has what is to be called after its commit; only what differs is there,
#: so it stays small.
_NOTIFICATIONS: Final = "holdfast.notifications"
#: A connection of SQLAlchemy tells only that it is about to commit.
_COMMIT_SECONDS: Final = 0.05


class Notification(Hashable, Protocol):
    """Sends wake-ups, sooner or later; never blocks and never fails."""

    def __call__(self, *, delay_s: float = 0) -> None:
        """Sends them now, or in a while."""
        ...


class Caller(Protocol):
    """A sync transaction."""

    def ask(self, function: str, text: str) -> Sequence[Row]:
        """The rows of a function that takes one text; what the driver raises is raised as it is."""
        ...

    def after_commit(self, notify: Notification) -> None:
        """Has this called when the transaction has been committed, if the library has a way to tell."""
        ...


@runtime_checkable
class AsyncCaller(Protocol):
    """An async transaction."""

    async def aask(self, function: str, text: str) -> Sequence[Row]:
        """The rows of a function that takes one text; what the driver raises is raised as it is."""
        ...

    def after_commit(self, notify: Notification) -> None:
        """Has this called when the transaction has been committed, if the library has a way to tell."""
        ...


def caller_of(transaction: Any) -> Caller | AsyncCaller:
    """The way into this transaction; `BadOption` if it is none that we know."""
    found: Caller | AsyncCaller | None = None
    families = {each.__module__.partition(".")[0] for each in type(transaction).__mro__}
    if "psycopg" in families:
        found = _psycopg_caller(transaction)
    elif "sqlalchemy" in families:
        found = _sqlalchemy_caller(transaction)
    elif "django" in families and hasattr(transaction, "in_atomic_block"):
        found = _DjangoConnection(transaction)
    if found is None:
        raise BadOption(
            f"transaction: {_shown(transaction)} is not one; give a connection of psycopg, a connection or session of "
            "SQLAlchemy 2, or django.db.connection"
        )
    return found


def _shown(value: Any) -> str:
    kind = type(value)
    return repr(value)[:40] if kind.__module__ == "builtins" else f"an object of {kind.__module__}.{kind.__qualname__}"


def _statement(function: str, mark: str) -> str:
    """The statement, in the paramstyle of a driver."""
    return _STATEMENT.format(function=function, mark=mark)


def _no_transaction(what: str, advice: str) -> BadOption:
    """The refusal of a connection that would commit each statement by itself."""
    return BadOption(f"transaction: {what} is in autocommit mode, with no transaction to join; {advice}")


def _no_postgres(kind: str) -> BadOption:
    """The refusal of a session of another kind of database."""
    return BadOption(
        f"transaction: it is one of a {kind} database, and the store is in PostgreSQL; use a session of that"
    )


# -- psycopg: it does not tell of commits, so the wake-up of the maintenance, once a second, has to do ----------------


def _psycopg_caller(transaction: Any) -> Caller | AsyncCaller | None:
    if isinstance(transaction, psycopg.Connection):
        return _PsycopgConnection(transaction)
    return _PsycopgAsyncConnection(transaction) if isinstance(transaction, psycopg.AsyncConnection) else None


class _PsycopgConnection:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def ask(self, function: str, text: str) -> list[Row]:
        # A cursor of our own kind: theirs may give dictionaries, or want other marks.
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            if _is_hidden_by_pipeline(self._connection):
                cursor.execute(_SYNC).fetchone()
            _check_transaction(self._connection)
            return cursor.execute(_statement(function, "%s").encode(), (text,)).fetchall()

    def after_commit(self, notify: Notification) -> None:
        del notify


class _PsycopgAsyncConnection:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def aask(self, function: str, text: str) -> list[Row]:
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            if _is_hidden_by_pipeline(self._connection):
                await (await cursor.execute(_SYNC)).fetchone()
            _check_transaction(self._connection)
            return await (await cursor.execute(_statement(function, "%s").encode(), (text,))).fetchall()

    def after_commit(self, notify: Notification) -> None:
        del notify


def _is_hidden_by_pipeline(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a BEGIN may still be on its way."""
    return connection.autocommit and connection.info.pipeline_status is not PipelineStatus.OFF


def _check_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise _no_transaction("the connection", "enqueue inside of `with connection.transaction():`")
    if connection.info.transaction_status is TransactionStatus.INERROR:
        raise BadOption("transaction: an error has ended it; roll it back first")


# -- Django: sync only ------------------------------------------------------------------------------------------------


class _DjangoConnection:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def ask(self, function: str, text: str) -> list[Row]:
        connection = self._connection
        if connection.vendor != "postgresql":
            raise _no_postgres(connection.vendor)
        if not connection.in_atomic_block and connection.get_autocommit():
            raise _no_transaction("Django", "enqueue inside of `with transaction.atomic():`")
        with connection.cursor() as cursor:
            cursor.execute(_statement(function, "%s"), [text])
            rows: list[Row] = cursor.fetchall()
            return rows

    def after_commit(self, notify: Notification) -> None:
        if self._connection.in_atomic_block:
            self._connection.on_commit(notify)


# -- SQLAlchemy, with any driver; within the async objects there are sync ones ----------------------------------------


def _sqlalchemy_caller(transaction: Any) -> Caller | AsyncCaller | None:
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    if int(sqlalchemy.__version__.partition(".")[0]) < 2:
        raise BadOption(f"transaction: this is SQLAlchemy {sqlalchemy.__version__}; it takes version 2 or newer")
    if any(each.__module__.startswith("sqlalchemy.ext.asyncio") for each in type(transaction).__mro__):
        return _sqlalchemy_async_caller(transaction)
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    return _SqlAlchemy(transaction) if isinstance(transaction, sqlalchemy.Connection | Session) else None


def _sqlalchemy_async_caller(transaction: Any) -> AsyncCaller | None:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(transaction, async_scoped_session):
        transaction = transaction()
    return _SqlAlchemyAsync(transaction) if isinstance(transaction, AsyncConnection | AsyncSession) else None


class _SqlAlchemy:
    def __init__(self, transaction: SqlAlchemyConnection | SqlAlchemySession) -> None:
        self._transaction = transaction

    def ask(self, function: str, text: str) -> list[Row]:
        return _ask(self._transaction, function, text)

    def after_commit(self, notify: Notification) -> None:
        _after_commit(self._transaction, notify)


class _SqlAlchemyAsync:
    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    async def aask(self, function: str, text: str) -> list[Row]:
        rows: list[Row] = await self._transaction.run_sync(_ask, function, text)
        return rows

    def after_commit(self, notify: Notification) -> None:
        _after_commit(getattr(self._transaction, "sync_session", None) or self._transaction.sync_connection, notify)


def _ask(transaction: SqlAlchemyConnection | SqlAlchemySession, function: str, text: str) -> list[Row]:
    import sqlalchemy
    from sqlalchemy.orm import Session

    connection = transaction.connection() if isinstance(transaction, Session) else transaction
    if connection.dialect.name != "postgresql":
        raise _no_postgres(connection.dialect.name)
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise _no_transaction("the engine or connection", "leave isolation_level='AUTOCOMMIT' out for this one")
    rows = connection.execute(sqlalchemy.text(_statement(function, ":call")), {"call": text})
    return [tuple(row) for row in rows]


def _after_commit(transaction: SqlAlchemyConnection | SqlAlchemySession, notify: Notification) -> None:
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    name, listener = ("after_commit", _committed) if isinstance(transaction, Session) else ("commit", _commits)
    # Once for each object, since a listener is not forgotten when it has done its work.
    if not event.contains(transaction, name, listener):
        event.listen(transaction, name, listener)
    transaction.info.setdefault(_NOTIFICATIONS, set()).add(notify)


def _committed(session: SqlAlchemySession) -> None:
    if not session.in_nested_transaction():  # the end of a savepoint is told of too
        for notify in session.info.pop(_NOTIFICATIONS, ()):
            notify()


def _commits(connection: SqlAlchemyConnection) -> None:
    for notify in connection.info.pop(_NOTIFICATIONS, ()):
        notify(delay_s=_COMMIT_SECONDS)
