"""One writer thread a process with group commit, and one reader thread beside it.

Callers of any thread and any event loop hand in operations; the writer takes all that wait, runs them in one
transaction, pays for one fsync, and answers them all. While it commits, the next group gathers.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreFull, StoreUnavailable
from holdfast.stores.sqlite.ballast import Ballast
from holdfast.stores.sqlite.bells import Bells
from holdfast.stores.sqlite.connection import connect, migrate
from holdfast.stores.sqlite.failures import translated
from holdfast.stores.sqlite.transaction import Transaction

T = TypeVar("T")
#: One group of operations: more would only make the first of them wait.
_MAX_GROUP = 256
_PAGE_BYTES = 4096
#: A longer log would make commits cheaper by a little, and a restart after a crash slower.
_LARGEST_LOG_PAGES = 4_000


class _Call:
    """An operation on its way through a thread, and where its answer goes."""

    __slots__ = ("adds", "answer", "error", "future", "loop", "operation")

    def __init__(self, operation: Callable[[Transaction], Any], adds: bool) -> None:
        self.operation = operation
        self.adds = adds
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None


class Engine:
    """The threads and connections of one database in one process."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._last_now_ms = 0
        self.bells = Bells(path)
        self.ballast = Ballast(path)
        self._writer = _Lane("holdfast-sqlite-writer", self._write_group)
        #: What is in memory is seen by its own connection only, so its reads go through the writer.
        self._reader = _Lane("holdfast-sqlite-reader", self._read_group) if path else self._writer
        self._steps: list[str] = []
        self._write_connection: apsw.Connection | None = None
        self._read_connection: apsw.Connection | None = None

    async def write(self, operation: Callable[[Transaction], T], *, adds: bool = False) -> T:
        """Runs an operation in a write transaction; durable when it returns. `adds`: refused when the disk is full."""
        answer: T = await self._writer.call(_Call(operation, adds))
        return answer

    async def read(self, operation: Callable[[Transaction], T]) -> T:
        """Runs an operation on a consistent view."""
        answer: T = await self._reader.call(_Call(operation, adds=False))
        return answer

    async def migrate(self) -> list[str]:
        """Opens the database if need be, and names the migrations that this took, once."""
        return await self.write(lambda _: self._taken_steps())

    async def close(self) -> None:
        """Finishes what was handed in, then ends threads and connections."""
        for lane in {self._reader, self._writer}:
            await lane.close()
        for connection in (self._read_connection, self._write_connection):
            if connection is not None:
                connection.close()
        self._read_connection = self._write_connection = None
        self.bells.close()

    # -- on the writer's thread -----------------------------------------------------------------------------

    def _open_for_writing(self) -> apsw.Connection:
        if self._write_connection is None:
            connection = connect(self._path)
            self._steps = migrate(connection, self._path)
            # What the log holds must fit into the room that the ballast leaves, or a full disk could not be drained.
            connection.wal_autocheckpoint(min(_LARGEST_LOG_PAGES, self.ballast.size // _PAGE_BYTES // 2))
            self._write_connection = connection
        return self._write_connection

    def _taken_steps(self) -> list[str]:
        steps, self._steps = self._steps, []
        return steps

    def _write_group(self, calls: Sequence[_Call]) -> None:
        self._open_for_writing()
        admitted = self._admitted(calls)
        try:
            self._commit_together(admitted)
        except apsw.BusyError as error:
            for call in admitted:
                call.error = translated(error, self._path)
        except apsw.Error:
            # Which of them it was is not known, and all were rolled back: each gets a transaction of its own.
            for call in admitted:
                self._commit_alone(call)

    def _admitted(self, calls: Sequence[_Call]) -> Sequence[_Call]:
        if self.ballast.restore():
            return calls
        for call in calls:
            if call.adds:
                call.error = StoreFull(f"{self._path}: the disk is full; free some space and enqueue again")
        return [call for call in calls if not call.adds]

    def _commit_together(self, calls: Sequence[_Call]) -> None:
        transaction = self._begin("BEGIN IMMEDIATE")
        try:
            for call in calls:
                _run(call, transaction)
            transaction.connection.execute("COMMIT")
        except BaseException:
            _roll_back(transaction.connection)
            raise
        self.bells.ring(transaction.bells)

    def _commit_alone(self, call: _Call) -> None:
        call.error = None
        try:
            self._commit_together([call])
        except apsw.FullError as error:
            self._commit_on_a_full_disk(call, error)
        except apsw.Error as error:
            call.error = translated(error, self._path)

    def _commit_on_a_full_disk(self, call: _Call, error: apsw.FullError) -> None:
        call.error = translated(error, self._path)
        self.ballast.give_up()
        if call.adds:
            return
        try:
            # The log may fill what the ballast leaves; emptied into the database, it starts over.
            self._open_for_writing().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._commit_together([call])
            call.error = None
        except apsw.Error as again:
            call.error = translated(again, self._path)

    # -- on the reader's thread -----------------------------------------------------------------------------

    def _read_group(self, calls: Sequence[_Call]) -> None:
        for call in calls:
            try:
                self._read(call)
            except apsw.Error as error:
                call.error = translated(error, self._path)

    def _read(self, call: _Call) -> None:
        if self._read_connection is None:
            connection = connect(self._path)
            migrate(connection, self._path)
            self._read_connection = connection
        transaction = self._begin("BEGIN", self._read_connection)
        try:
            _run(call, transaction)
        finally:
            _roll_back(transaction.connection)

    def _begin(self, statement: str, connection: apsw.Connection | None = None) -> Transaction:
        connection = connection or self._open_for_writing()
        connection.execute(statement)
        # Read after the lock was taken, and never backwards: no task becomes due and then not due.
        self._last_now_ms = max(self._last_now_ms, self._clock.now_ms())
        return Transaction(connection, self._last_now_ms)


class _Lane:
    """A thread that takes calls in groups and answers each on the loop that it came from."""

    def __init__(self, name: str, run_group: Callable[[Sequence[_Call]], None]) -> None:
        self._name = name
        self._run_group = run_group
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def call(self, call: _Call) -> Any:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._thread is None:
            self._start_once()
        self._calls.put(call)
        # A caller that is cancelled while its operation may be under way must not leave it half known:
        # the operation goes on, and its ids make it safe to repeat.
        return await call.future

    async def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._calls.put(None)
            # Not to_thread(join): that would start a thread, which a program that is about to exit may not do.
            while self._thread.is_alive():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def _start_once(self) -> None:
        with self._start:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _serve(self) -> None:
        while (first := self._calls.get()) is not None:
            calls, last = self._gather(first)
            try:
                self._run_group(calls)
            except BaseException as error:  # noqa: BLE001  # Answered to every caller: a silent thread is a hang.
                for call in calls:
                    call.error = call.error or error
            _answer(calls)
            if last:
                return

    def _gather(self, first: _Call) -> tuple[list[_Call], bool]:
        calls = [first]
        with contextlib.suppress(queue.Empty):
            while len(calls) < _MAX_GROUP:
                call = self._calls.get_nowait()
                if call is None:
                    return calls, True
                calls.append(call)
        return calls, False


def _run(call: _Call, transaction: Transaction) -> None:
    try:
        call.answer = call.operation(transaction)
    except HoldfastError as error:
        # Operations check first and write then, so one that refuses has written nothing.
        call.error = error


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _answer(calls: Sequence[_Call]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, answered in by_loop.items():
        with contextlib.suppress(RuntimeError):  # That loop is closed: nobody waits there any more.
            loop.call_soon_threadsafe(_deliver, answered)


def _deliver(calls: Sequence[_Call]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.answer)
