"""Connections and sessions of SQLAlchemy, with any driver; within the async ones there are sync ones."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy
from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session, scoped_session

from holdfast.errors import BadOption
from holdfast.stores.postgres.callers.kinds import (
    AsyncCaller,
    Caller,
    Ring,
    Row,
    no_postgres,
    no_transaction,
    statement,
)

#: Where a session or a connection keeps what is to be rung; only what differs is kept, so it stays small.
_RINGS: Final = "holdfast.rings"
#: A connection tells only that it is about to commit.
_COMMIT_SECONDS: Final = 0.05


def sqlalchemy_caller(transaction: Any) -> Caller | AsyncCaller | None:
    """The way into this connection or session, None if it is something else."""
    if int(sqlalchemy.__version__.partition(".")[0]) < 2:
        raise BadOption(f"transaction: this is SQLAlchemy {sqlalchemy.__version__}; it takes version 2 or newer")
    if any(each.__module__.startswith("sqlalchemy.ext.asyncio") for each in type(transaction).__mro__):
        return _async_caller(transaction)
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    return _Sync(transaction) if isinstance(transaction, Connection | Session) else None


def _async_caller(transaction: Any) -> AsyncCaller | None:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(transaction, async_scoped_session):
        transaction = transaction()
    return _Async(transaction) if isinstance(transaction, AsyncConnection | AsyncSession) else None


class _Sync:
    def __init__(self, transaction: Connection | Session) -> None:
        self._transaction = transaction

    def ask(self, function: str, text_value: str) -> list[Row]:
        return _ask(self._transaction, function, text_value)

    def after_commit(self, ring: Ring) -> None:
        _after_commit(self._transaction, ring)


class _Async:
    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    async def aask(self, function: str, text_value: str) -> list[Row]:
        rows: list[Row] = await self._transaction.run_sync(_ask, function, text_value)
        return rows

    def after_commit(self, ring: Ring) -> None:
        _after_commit(getattr(self._transaction, "sync_session", None) or self._transaction.sync_connection, ring)


def _ask(transaction: Connection | Session, function: str, text_value: str) -> list[Row]:
    connection = transaction.connection() if isinstance(transaction, Session) else transaction
    if connection.dialect.name != "postgresql":
        raise no_postgres(connection.dialect.name)
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise no_transaction("the engine or connection", "leave isolation_level='AUTOCOMMIT' out for this one")
    rows = connection.execute(text(statement(function, ":call")), {"call": text_value})
    return [tuple(row) for row in rows]


def _after_commit(transaction: Connection | Session, ring: Ring) -> None:
    name, listener = ("after_commit", _committed) if isinstance(transaction, Session) else ("commit", _commits)
    # Once for each object, since a listener is not forgotten when it has done its work.
    if not event.contains(transaction, name, listener):
        event.listen(transaction, name, listener)
    transaction.info.setdefault(_RINGS, set()).add(ring)


def _committed(session: Session) -> None:
    if not session.in_nested_transaction():  # the end of a savepoint is told of too
        for ring in session.info.pop(_RINGS, ()):
            ring()


def _commits(connection: Connection) -> None:
    for ring in connection.info.pop(_RINGS, ()):
        ring(delay_s=_COMMIT_SECONDS)
