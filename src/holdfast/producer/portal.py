"""The sync face: one event loop in one background thread, for every app and process that needs it.

Sync code hands its coroutines over and waits. There is no second copy of any logic, it works inside a running
loop (that loop is blocked meanwhile, as by any sync call), and a forked child gets a loop of its own.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast.core.payload import is_encrypted
from holdfast.core.task import State, Task
from holdfast.errors import HoldfastError, ResultTimeout, UsageError
from holdfast.runtime.forks import process
from holdfast.runtime.interrupts import shielded
from holdfast.runtime.threads import imported, start_thread

if TYPE_CHECKING:
    import asyncio

    from holdfast.security.crypto import PayloadCrypto
    from holdfast.stores.contract import Store

T = TypeVar("T")


_JOIN_SECONDS = 5.0


class _Cell(Generic[T]):
    """The place of one process's value."""

    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        #: Reentrant: a signal handler may come while its thread holds it.
        self.lock = threading.RLock()
        self.value: T | None = None


class PerProcess(Generic[T]):
    """A value made on first use, and made anew in a forked child.

    What the parent made stays referenced in the child, untouched: closing it there, or letting it be collected,
    could reach into the parent's files and sockets. The lock is per process too, since a fork copies held locks.
    """

    def __init__(self, make: Callable[[], T], discard: Callable[[T], None] | None = None) -> None:
        self._make = make
        #: Ends a value that was made in vain.
        self._discard = discard
        self._cells: dict[tuple[int, int], _Cell[T]] = {}

    def get(self) -> T:
        """The value of this process."""
        cell = self._cell()
        value = cell.value
        if value is None:
            with shielded(), cell.lock:
                value = cell.value or self._made(cell)
        return value

    def _made(self, cell: _Cell[T]) -> T:
        made = self._make()
        if cell.value is None:
            cell.value = made
        elif self._discard is not None:  # A signal handler of this thread was here meanwhile.
            self._discard(made)
        return cell.value

    def peek(self) -> T | None:
        """The value of this process, if it was made."""
        return self._cell().value

    def take(self) -> T | None:
        """The value of this process, if it was made; the next `get` makes another."""
        cell = self._cell()
        with shielded(), cell.lock:
            value, cell.value = cell.value, None
        return value

    def through(self, changed: Callable[[T], T]) -> None:
        """Every value that is made from now on is what this makes of it."""
        make = self._make
        self._make = lambda: changed(make())

    def replace(self, make: Callable[[], T]) -> Callable[[], None]:
        """Values are made in this way from now on; call what this gives, and all is as before."""
        before = self._make, self._cells
        self._make, self._cells = make, {}

        def restore() -> None:
            self._make, self._cells = before

        return restore

    def _cell(self) -> _Cell[T]:
        this = process()
        return self._cells.get(this) or self._cells.setdefault(this, _Cell())


class SubmittedCall(Generic[T]):
    """A coroutine that an event loop runs for another thread; what ends it first, its own end or `cancel`, counts.

    It has no lock that its caller holds between two lines, as `concurrent.futures.Future` has: there a signal handler
    may come, whose own call would wait for the loop, and the loop for that lock.
    """

    __slots__ = ("_callbacks", "_coroutine", "_error", "_is_cancelled", "_open", "_running", "_under_way", "_value")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        #: Taken, in one step, by what ends it.
        self._open = [None]
        #: Held until it has ended.
        self._under_way = threading.Lock()
        self._under_way.acquire()
        self._callbacks: list[Callable[[], object]] = []
        self._running: tuple[asyncio.Task[T], asyncio.AbstractEventLoop] | None = None
        self._is_cancelled = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def result(self, timeout: float = -1) -> T:
        """What the coroutine returned, once it has ended; raises what it raised."""
        if not self._under_way.acquire(timeout=timeout):
            raise TimeoutError
        self._under_way.release()
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def cancel(self) -> None:
        """Ends it for its caller at once, and the coroutine at its next `await`."""
        from concurrent.futures import CancelledError

        if self._end(None, CancelledError()):
            self._is_cancelled = True
            self._stop()

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Calls this once, in the thread that ends it, or at once if it has ended."""
        self._callbacks.append(callback)
        if not self._under_way.locked():
            self._tell()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the coroutine in this loop, which is that of the caller of this method."""
        task = loop.create_task(self._coroutine)
        task.add_done_callback(self._pass_on)
        self._running = task, loop
        if self._is_cancelled:
            task.cancel()

    def _stop(self) -> None:
        if self._running is not None:
            task, loop = self._running
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

    def _pass_on(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.cancel()
        elif (error := task.exception()) is not None:
            self._end(None, error)
        else:
            self._end(task.result(), None)

    def _end(self, value: T | None, error: BaseException | None) -> bool:
        try:
            self._open.pop()
        except IndexError:
            return False
        self._value, self._error = value, error
        self._under_way.release()
        self._tell()
        return True

    def _tell(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:  # the other thread has taken it
                return
            callback()


class _LoopThread:
    """An event loop that runs in a daemon thread until it is stopped."""

    def __init__(self) -> None:
        asyncio, loops = imported("asyncio"), imported("holdfast.runtime.loops")
        # A loop factory keeps the runner from making this the current loop of the thread that starts it.
        self._runner = asyncio.Runner(loop_factory=loops.fastest_loop())
        self._loop = self._runner.get_loop()
        self._stopping = asyncio.Event()
        #: Reentrant: a signal handler may enqueue while its thread does.
        self._lock = threading.RLock()
        self._closed = False
        self._thread: int | None = None
        #: Held until the thread has ended.
        self._ended = threading.Lock()
        self._ended.acquire()
        start_thread(self._serve, "holdfast-portal")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> SubmittedCall[T]:
        """Starts the coroutine in the loop."""
        call = SubmittedCall(coroutine)
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(call.begin, self._loop)
                return call
        coroutine.close()
        raise RuntimeError("the app was closed by another thread during this call")

    def stop(self) -> None:
        """Ends the loop; what is still running in it is cancelled."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._stopping.set)

    def join(self) -> None:
        """Waits until the thread has ended, for some seconds at most."""
        if self._ended.acquire(timeout=_JOIN_SECONDS):
            self._ended.release()

    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._thread

    def _serve(self) -> None:
        self._thread = threading.get_ident()
        try:
            with self._runner:
                self._runner.run(self._until_stopped())
        finally:
            self._ended.release()

    async def _until_stopped(self) -> None:
        await self._stopping.wait()


class Portal:
    """Runs coroutines for sync callers; started on first use, once per process."""

    def __init__(self, on_close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_close = on_close
        self._threads = PerProcess(self._start, _LoopThread.stop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; an interrupt of the caller cancels it."""
        with shielded():
            return finished(self.start(coroutine))

    def start(self, coroutine: Coroutine[Any, Any, T]) -> SubmittedCall[T]:
        """Has the coroutine run; `finished` waits for it."""
        running = self._threads.get()
        if running.is_current():
            coroutine.close()
            raise RuntimeError("a sync call inside Holdfast's own event loop would wait for itself; use the async one")
        with shielded():
            return running.submit(coroutine)

    def is_current(self) -> bool:
        """Whether the caller runs in the thread of its event loop."""
        running = self._threads.peek()
        return running is not None and running.is_current()

    def close(self) -> None:
        """Runs `on_close` in the loop and ends the thread, if there is one in this process."""
        running = self._threads.take()
        if running is None:
            return
        atexit.unregister(self.close)
        try:
            running.submit(self._on_close()).result(_JOIN_SECONDS)
        finally:
            running.stop()
            running.join()

    def abandon(self) -> None:
        """As `close`, without waiting: for the garbage collector, which may call from any thread at all."""
        running = self._threads.take()
        if running is not None:
            atexit.unregister(self.close)
            running.submit(self._on_close()).when_ended(running.stop)

    def _start(self) -> _LoopThread:
        atexit.register(self.close)
        return _LoopThread()


def finished(call: SubmittedCall[T]) -> T:
    """The result; an interrupt of the caller cancels what is under way."""
    try:
        with shielded(call.cancel):
            return call.result()
    except BaseException:
        call.cancel()
        raise


# -- link ----------------------------------------------------------------------------------------------------


class StoreLink:
    """What task types and handles share: the store of this process, the sync face, and `why`."""

    def __init__(self, store: Callable[[], Store], portal: Portal, crypto: PayloadCrypto | None = None) -> None:
        self.store = store
        self.run = portal.run
        self.start = portal.start
        #: Queues of which it was logged that no worker takes their tasks.
        self._warned: set[str] = set()
        #: Called with each task that a caller has waited for some seconds, again and again.
        self.on_long_wait: Callable[[Task], None] | None = None
        #: Whether a caller may wait for a task to finish; False in a test whose clock stands still.
        self.waits = True
        #: How the app signs and encrypts, if it does.
        self.crypto = crypto

    async def why(self, task_id: str) -> str:
        """Why the task is in its current state."""
        from holdfast.admin.why import why

        return (await why(self.store(), task_id)).text

    async def timed_out(self, task_id: str, limit_ms: int) -> ResultTimeout:
        """The error for a caller that has waited this long."""
        from holdfast.admin.why import timed_out

        return await timed_out(self.store(), task_id, limit_ms)

    def check_waiting(self, unfinished: str, *, bounded: bool) -> None:
        """Refuses to wait for tasks in a test whose clock stands still: `TimeoutError` if the wait has a limit."""
        if self.waits:
            return
        if bounded:
            raise TimeoutError
        raise UsageError(
            f"{unfinished}, and in this test no task runs while a caller waits: "
            "call run_due() or advance() before, or use eager(app)"
        )

    async def warn_if_hindered(self, task: Task) -> None:
        """Logs a warning, once for each queue, if a caller waits for a task that no running worker can take."""
        if self.on_long_wait is not None:
            self.on_long_wait(task)
        from holdfast.admin.why import hindrance, in_sentence

        if task.queue in self._warned or task.state is State.CLAIMED:
            return
        try:
            found = await hindrance(self.store(), task)
        except HoldfastError:
            return  # the wait itself reports a store that does not answer
        if found:
            self._warned.add(task.queue)
            import logging

            logging.getLogger("holdfast.producer").warning(
                "waiting for task %s in %s: %s", task.task_id, self.store().url, in_sentence(found)
            )

    def opened_arguments(self, task: Task) -> bytes:
        """The arguments of a task as its producer gave them, whether they were encrypted or not."""
        if self.crypto is not None:
            return self.crypto.opened_arguments(task)
        if is_encrypted(task.payload):
            from holdfast.security.crypto import needs_key

            raise needs_key(task.payload, f"the arguments of task {task.task_id}")
        return task.payload

    def opened(self, task: Task, result: bytes) -> bytes:
        """The result of a task as its function gave it, whether it was encrypted or not."""
        if self.crypto is not None:
            return self.crypto.opened_result(task, result)
        if is_encrypted(result):
            from holdfast.security.crypto import needs_key

            raise needs_key(result, f"the result of task {task.task_id}")
        return result
