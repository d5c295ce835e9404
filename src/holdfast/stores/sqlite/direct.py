"""Enqueues a task in the thread of a sync caller: one transaction that is one call of SQLite, with no other thread.

It has a connection of its own, and never waits: not for the writer thread, whose groups are what many callers at once
need, and not for another process. What it cannot do at once is left to the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import apsw

from holdfast.clock import Clock
from holdfast.core.task import NewTask
from holdfast.stores.sqlite.call_thread import Turns
from holdfast.stores.sqlite.connection import File, connect, disconnect
from holdfast.stores.sqlite.enqueue import ttls
from holdfast.stores.sqlite.transaction import SQL, headers_text, policy_text

#: How long the writer waits for a call under way before it begins a group. Only to spare SQLite's busy handler: a call
#: that takes longer is interrupted by a signal handler, whose own task may be in that very group.
_POLITE_SECONDS: Final = 0.005


class DirectWriter(Turns):
    """The connection of callers who enqueue one task in their own thread.

    A signal handler may come in between two calls of SQLite and enqueue a task too: none of them is in a transaction
    then, so that it gets its turn.
    """

    def __init__(self, path: str, clock: Clock, configure: Callable[[apsw.Connection], None]) -> None:
        super().__init__(self._close)
        self._path = path
        self._clock = clock
        self._configure = configure
        self._file = File(path)
        self._connection: apsw.Connection | None = None
        #: Of a parent that did not announce its fork. Kept: to close it would release the locks of the parent.
        self._inherited: list[apsw.Connection | None] = []
        self._calls = 0

    def start_anew(self) -> None:
        """In a forked child: without the connection of the parent."""
        super().start_anew()
        self._inherited.append(self._connection)
        self._connection = None
        self._file = File(self._path)

    def enqueue(self, task: NewTask, map_version: int) -> bool:
        """Whether the task was enqueued, and is durable; if not, what has become of it is not known."""
        if task.priority or task.delay_ms or task.run_at_ms is not None or task.policy.expires_ms is not None:
            return False
        taken = False
        try:
            taken = self.take()
            return taken and self._enqueue(task, map_version)
        except apsw.BusyError:
            self._close_in_doubt()
            return False
        except Exception:  # noqa: BLE001  # the writer thread makes the same task again, and its error is told
            self._close()
            return False
        finally:
            if taken:
                self.end()

    def wait(self) -> bool:
        """A turn for a group of the writer, unless a call takes too long."""
        return self.take(_POLITE_SECONDS)

    def close(self) -> None:
        """Ends the connection."""
        with self.turn():
            self._close()

    def _enqueue(self, task: NewTask, map_version: int) -> bool:
        connection = self._connection
        if connection is None:
            connection = self._open()
        elif self._file.is_gone():
            self._close()
            return False
        self._calls = this = self._calls + 1
        policy = task.policy
        connection.execute(
            SQL["enqueue_one"],
            (
                task.task_id,
                task.queue,
                task.type,
                task.request_id,
                self._clock.now_ms(),
                *ttls(policy),
                map_version,
                task.payload,
                headers_text(task.headers),
                policy_text(policy),
            ),
        )
        # Unless that is what a signal handler has changed meanwhile.
        return connection.changes() == 1 and this == self._calls

    def _open(self) -> apsw.Connection:
        connection, _ = connect(self._path, again=True)
        connection.set_busy_handler(None)
        self._configure(connection)
        self._connection = connection
        self._file.opened()
        return connection

    def _close_in_doubt(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._file.closed()
            disconnect(connection)
