"""Database connections of Django, which are sync only; nothing of Django is imported for them."""

from __future__ import annotations

from typing import Any

from holdfast.stores.postgres.callers.kinds import Caller, Ring, Row, no_postgres, no_transaction, statement


def django_caller(transaction: Any) -> Caller | None:
    """The way into this connection, None if it is something else."""
    return _Connection(transaction) if hasattr(transaction, "in_atomic_block") else None


class _Connection:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def ask(self, function: str, text: str) -> list[Row]:
        connection = self._connection
        if connection.vendor != "postgresql":
            raise no_postgres(connection.vendor)
        if not connection.in_atomic_block and connection.get_autocommit():
            raise no_transaction("Django", "enqueue inside of `with transaction.atomic():`")
        with connection.cursor() as cursor:
            cursor.execute(statement(function, "%s"), [text])
            rows: list[Row] = cursor.fetchall()
            return rows

    def after_commit(self, ring: Ring) -> None:
        if self._connection.in_atomic_block:
            self._connection.on_commit(ring)
