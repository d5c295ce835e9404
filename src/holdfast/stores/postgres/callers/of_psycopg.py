"""Connections of psycopg. It does not tell of commits: the upkeep's ring, once a second, has to do."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from holdfast.errors import BadOption
from holdfast.stores.postgres.callers.kinds import AsyncCaller, Caller, Ring, Row, no_transaction, statement

_SYNC = b"SELECT 1"


def psycopg_caller(transaction: Any) -> Caller | AsyncCaller | None:
    """The way into this connection, None if it is something else."""
    if isinstance(transaction, psycopg.Connection):
        return _Connection(transaction)
    return _AsyncConnection(transaction) if isinstance(transaction, psycopg.AsyncConnection) else None


class _Connection:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def ask(self, function: str, text: str) -> list[Row]:
        # A cursor of our own kind: theirs may give dictionaries, or want other marks.
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            if _is_hidden_by_pipeline(self._connection):
                cursor.execute(_SYNC).fetchone()
            _check_transaction(self._connection)
            return cursor.execute(statement(function, "%s").encode(), (text,)).fetchall()

    def after_commit(self, ring: Ring) -> None:
        del ring


class _AsyncConnection:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def aask(self, function: str, text: str) -> list[Row]:
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            if _is_hidden_by_pipeline(self._connection):
                await (await cursor.execute(_SYNC)).fetchone()
            _check_transaction(self._connection)
            return await (await cursor.execute(statement(function, "%s").encode(), (text,))).fetchall()

    def after_commit(self, ring: Ring) -> None:
        del ring


def _is_hidden_by_pipeline(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a BEGIN may still be on its way."""
    return connection.autocommit and connection.info.pipeline_status is not PipelineStatus.OFF


def _check_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise no_transaction("the connection", "enqueue inside of `with connection.transaction():`")
    if connection.info.transaction_status is TransactionStatus.INERROR:
        raise BadOption("transaction: an error has ended it; roll it back first")
