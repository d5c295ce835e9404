"""Connections as tasks see them: those of psycopg, save that nobody but the block ends their transaction."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeVar

import psycopg
from psycopg import pq

from holdfast.errors import UsageError
from holdfast.shield import shielded
from holdfast.stores.postgres.lines import Line

_NOT_HERE: Final = (
    "transaction(): {what}() has no place inside the block, which commits at its end and rolls back if an exception "
    "leaves it; for a part that may fail, use: {nested}"
)
#: How long the server may take to hear that an interrupted statement is to stop.
_CANCEL_SECONDS: Final = 2.0


class LoopConnection(Line):
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
        """As usual, save that whoever interrupts the thread has the server stop the statement, and waits for that."""
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


Connection = TypeVar("Connection", LoopConnection, ThreadConnection)


class Loan:
    """A line in the hands of a task, under a new face: row factories and adapters of one task are not for the next."""

    def __init__(self, line: Line, face: type[LoopConnection | ThreadConnection]) -> None:
        self._line = line
        self._handlers = line.pgconn.notice_handler, line.pgconn.notify_handler
        #: What the task gets.
        self.connection = face(line.pgconn)
        # Statements that one face prepares would be in the way of the next, and of poolers.
        self.connection.prepare_threshold = None
        line.in_thread = face is ThreadConnection

    def end(self) -> Line:
        """The line again; to whoever still has the connection, it is closed."""
        line, self.connection.pgconn = self._line, pq.PGconn()
        line.pgconn.notice_handler, line.pgconn.notify_handler = self._handlers
        line.in_thread = False
        return line
