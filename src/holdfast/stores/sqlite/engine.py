"""One writer thread a process with group commit, one reader thread beside it, and a short way for sync callers.

Callers of any thread and any event loop hand in operations; the writer takes all that wait, runs them in one
transaction, pays for one fsync, and answers them all. While it commits, the next group gathers. A sync caller that
enqueues one task while no group is under way does so in its own thread: direct.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from holdfast.clock import Clock
from holdfast.core.task import NewTask
from holdfast.errors import HoldfastError, StoreFull, StoreUnavailable
from holdfast.runtime.forks import process, watch
from holdfast.stores.sqlite.ballast import Ballast, Use
from holdfast.stores.sqlite.call_thread import AsyncCall, CallThread, PendingCall, SyncCall
from holdfast.stores.sqlite.connection import File, connect, disconnect, pending
from holdfast.stores.sqlite.direct import DirectWriter
from holdfast.stores.sqlite.errors import translated
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.stores.sqlite.wakeup import Wakeups

T = TypeVar("T")
_PAGE_BYTES = 4096
#: A longer log would make commits cheaper by a little, and a restart after a crash slower.
_LARGEST_LOG_PAGES = 4_000
#: On a full disk old results are deleted until there is this much room, in times of the ballast: more than new tasks
#: need to be taken again, or each of them would have to wait for the next pruning.
_PRUNED_BALLASTS = 2
_GONE = (
    "%s was deleted or replaced while it was in use, and is opened again now; if that was not meant, "
    "stop all workers and producers and restore the file from a backup"
)
_log = logging.getLogger("holdfast.stores")


class Engine:
    """The threads and connections of one database in one process.

    A fork waits until both threads are between two groups and closes their connections: SQLite's file locks are those
    of a process, and a child that inherited them would commit into files that others delete. Parent and child open the
    file again with their next call.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._process = process()
        self.wakeups = Wakeups(path)
        self.ballast = Ballast(path)
        self._writer = CallThread("holdfast-sqlite-writer", self._write_group, self._close_writer)
        self._direct = DirectWriter(path, clock, self._limit_log)
        #: What is in memory is seen by its own connection only, so its reads go through the writer.
        self._reader = self._writer
        if path:
            self._reader = CallThread("holdfast-sqlite-reader", self._read_group, self._close_reader)
        self._steps: list[str] = []
        self._was_open = False
        self._write_file, self._read_file = File(path), File(path)
        self._write_connection: apsw.Connection | None = None
        self._read_connection: apsw.Connection | None = None
        #: Of a parent that did not announce its fork. Kept: to close them would release the locks of the parent.
        self._inherited: list[apsw.Connection | None] = []
        if path:
            watch(self)

    async def write(self, operation: Callable[[Transaction], T], use: Use = Use.SETTLEMENTS) -> T:
        """Runs an operation in a write transaction; durable when it returns."""
        self._check_process()
        answer: T = await self._writer.call(AsyncCall(operation, use))
        return answer

    def write_now(self, operation: Callable[[Transaction], T], use: Use) -> T:
        """As `write`, for a caller that waits in its own thread: no event loop is on the way."""
        self._check_process()
        answer: T = self._writer.call_now(SyncCall(operation, use))
        return answer

    def enqueue_now(self, task: NewTask, map_version: int) -> bool:
        """Whether this task was enqueued in this thread, with no other on the way; if not, `write` says what is up."""
        self._check_process()
        if self._write_connection is None or not self._path or not self.ballast.is_whole:
            return False
        return self._direct.enqueue(task, map_version)

    async def read(self, operation: Callable[[Transaction], T]) -> T:
        """Runs an operation on a consistent view."""
        self._check_process()
        answer: T = await self._reader.call(AsyncCall(operation, Use.SETTLEMENTS))
        return answer

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until one of these wake-ups comes, True, or until the time is over."""
        self._check_process()
        return await self.wakeups.wait(names, timeout_ms)

    async def migrate(self) -> list[str]:
        """Opens the database if need be, and names the migrations that this took, once."""
        return await self.write(lambda _: self._taken_steps())

    async def pending(self) -> list[str]:
        """The migrations that `migrate` would take."""
        # What is in memory is made when it is opened, and is never old.
        return await asyncio.to_thread(self._pending) if self._path else []

    async def close(self) -> None:
        """Finishes what was handed in, then ends threads and connections."""
        self._check_process()
        for thread in {self._reader, self._writer}:
            await thread.close()
        self._direct.close()
        self.wakeups.close()

    # -- forks ----------------------------------------------------------------------------------------------

    def before_fork(self, deadline: float) -> None:
        """Closes the connections between two groups; after the deadline they stay open, and the child refuses."""
        for connection in (self._reader, self._writer, self._direct):
            connection.pause(deadline)

    def after_fork_in_parent(self) -> None:
        """Lets the threads go on; they open the file again."""
        for connection in (self._reader, self._writer, self._direct):
            connection.resume()

    def after_fork_in_child(self) -> None:
        """Begins anew: without threads, calls or open pipes of the parent."""
        self._process = process()
        self._inherited += [self._write_connection, self._read_connection]
        self._write_connection = self._read_connection = None
        self._write_file, self._read_file = File(self._path), File(self._path)
        for connection in (self._reader, self._writer, self._direct):
            connection.start_anew()
        self.wakeups.start_anew()

    def _check_process(self) -> None:
        if self._process != process():
            if not self._path:
                raise StoreUnavailable("sqlite:// lives in the memory of one process and does not survive a fork")
            self.after_fork_in_child()  # of a fork that Python was not told of

    # -- on the writer's thread -----------------------------------------------------------------------------

    def _open_for_writing(self) -> apsw.Connection:
        if self._write_connection is None:
            connection, steps = connect(self._path, again=self._was_open)
            self._steps += steps
            self._limit_log(connection)
            self._write_connection = connection
            self._was_open = True
            self._write_file.opened()
        return self._write_connection

    def _limit_log(self, connection: apsw.Connection) -> None:
        connection.wal_autocheckpoint(min(_LARGEST_LOG_PAGES, self.ballast.longest_log // _PAGE_BYTES))

    def _close_writer(self) -> None:
        if self._write_connection is not None:
            self._write_file.closed()
            disconnect(self._write_connection)
            self._write_connection = None

    def _taken_steps(self) -> list[str]:
        steps, self._steps = self._steps, []
        return steps

    def _write_group(self, calls: Sequence[PendingCall]) -> None:
        waited = self._direct.wait()
        try:
            self._write(calls)
        finally:
            if waited:
                self._direct.end()

    def _write(self, calls: Sequence[PendingCall]) -> None:
        self._check_file(self._write_file, self._close_writer)
        self._open_for_writing()
        admitted = self._admitted(calls)
        try:
            self._commit_together(admitted)
        except apsw.BusyError as error:
            for call in admitted:
                call.error = translated(error, self._path)
        except Exception:  # noqa: BLE001  # raised again by the call that is at fault, and for that one only
            # Which of them it was is not known, and all were rolled back: each gets a transaction of its own.
            for call in sorted(admitted, key=_by_use):
                self._commit_alone(call)

    def _admitted(self, calls: Sequence[PendingCall]) -> Sequence[PendingCall]:
        if self.ballast.restore() or self._has_free_pages():
            return calls
        for call in calls:
            if call.use is Use.NEW_TASKS:
                call.error = StoreFull(f"{self._path}: the disk is full; free some space and enqueue again")
        return [call for call in calls if call.use is not Use.NEW_TASKS]

    def is_nearly_full(self) -> bool:
        """Whether old results have to go for new tasks, asked inside of an operation."""
        return not self.ballast.is_whole and not self._has_free_pages(_PRUNED_BALLASTS)

    def _has_free_pages(self, ballasts: int = 1) -> bool:
        """Whether there is such room inside of the file: what was deleted leaves it there, not on the disk."""
        free_pages = self._open_for_writing().pragma("freelist_count")
        return int(free_pages) * _PAGE_BYTES >= ballasts * self.ballast.size

    def _commit_together(self, calls: Sequence[PendingCall]) -> None:
        transaction = self._begin("BEGIN IMMEDIATE")
        try:
            for call in calls:
                _run(call, transaction)
            transaction.connection.execute("COMMIT")
        except BaseException:
            _roll_back(transaction.connection)
            raise
        self.wakeups.notify(transaction.wakeups)

    def _commit_alone(self, call: PendingCall) -> None:
        call.error = None
        try:
            self._commit_together([call])
        except apsw.FullError as error:
            self._commit_on_a_full_disk(call, error)
        except Exception as error:  # noqa: BLE001  # its caller gets it
            call.error = self._explained(error)

    def _commit_on_a_full_disk(self, call: PendingCall, error: apsw.FullError) -> None:
        call.error = translated(error, self._path)
        self.ballast.give_up(call.use)
        if call.use is Use.NEW_TASKS and not self._has_free_pages():
            return
        try:
            # The log may fill what the ballast leaves; emptied into the database, it starts over.
            self._open_for_writing().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._commit_together([call])
            call.error = None
        except Exception as again:  # noqa: BLE001  # its caller gets it
            call.error = self._explained(again)

    def _explained(self, error: Exception) -> Exception:
        return translated(error, self._path) if isinstance(error, apsw.Error) else error

    # -- on the reader's thread -----------------------------------------------------------------------------

    def _read_group(self, calls: Sequence[PendingCall]) -> None:
        for call in calls:
            try:
                self._read(call)
            except Exception as error:  # noqa: BLE001  # its caller gets it
                call.error = self._explained(error)

    def _read(self, call: PendingCall) -> None:
        self._check_file(self._read_file, self._close_reader)
        if self._read_connection is None:
            self._read_connection, _ = connect(self._path, again=self._was_open)
            self._was_open = True
            self._read_file.opened()
        transaction = self._begin("BEGIN", self._read_connection)
        try:
            _run(call, transaction)
        finally:
            _roll_back(transaction.connection)

    def _close_reader(self) -> None:
        if self._read_connection is not None:
            self._read_file.closed()
            disconnect(self._read_connection)
            self._read_connection = None

    def _pending(self) -> list[str]:
        with self._reader.turn():
            return pending(self._path)

    def _begin(self, statement: str, connection: apsw.Connection | None = None) -> Transaction:
        connection = connection or self._open_for_writing()
        connection.execute(statement)
        # Read after the lock was taken. A clock that is set back is followed: all processes on the file do the same.
        return Transaction(connection, self._clock.now_ms())

    def _check_file(self, file: File, close: Callable[[], None]) -> None:
        """Refuses to go on with a file that is not at its path any more: what is written there is lost."""
        if file.is_gone():
            close()
            _log.error(_GONE, self._path)
            raise StoreUnavailable(_GONE % self._path)


def _by_use(call: PendingCall) -> int:
    return -call.use


def _run(call: PendingCall, transaction: Transaction) -> None:
    try:
        call.answer = call.operation(transaction)
    except HoldfastError as error:
        # Operations check first and write then, so one that refuses has written nothing.
        call.error = error


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
