"""The sync face: one event loop in one background thread, for every app and process that needs it.

Sync code hands its coroutines over and waits. There is no second copy of any logic, it works inside a running
loop (that loop is blocked meanwhile, as by any sync call), and a forked child gets a loop of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from holdfast.shield import shielded

T = TypeVar("T")

_JOIN_SECONDS = 5.0


class _Cell(Generic[T]):
    """The place of one process's value."""

    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: T | None = None


class PerProcess(Generic[T]):
    """A value made on first use, and made anew in a forked child.

    What the parent made stays referenced in the child, untouched: closing it there, or letting it be collected,
    could reach into the parent's files and sockets. The lock is per process too, since a fork copies held locks.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._cells: dict[int, _Cell[T]] = {}

    def get(self) -> T:
        """The value of this process."""
        cell = self._cell()
        value = cell.value
        if value is None:
            with cell.lock:
                value = cell.value
                if value is None:
                    value = cell.value = self._make()
        return value

    def peek(self) -> T | None:
        """The value of this process, if it was made."""
        return self._cell().value

    def take(self) -> T | None:
        """The value of this process, if it was made; the next `get` makes another."""
        cell = self._cell()
        with cell.lock:
            value, cell.value = cell.value, None
        return value

    def through(self, changed: Callable[[T], T]) -> None:
        """Every value that is made from now on is what this makes of it."""
        make = self._make
        self._make = lambda: changed(make())

    def _cell(self) -> _Cell[T]:
        pid = os.getpid()
        return self._cells.get(pid) or self._cells.setdefault(pid, _Cell())


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _LoopThread:
    """An event loop that runs in a daemon thread until it is stopped."""

    def __init__(self) -> None:
        # A loop factory keeps the runner from making this the current loop of the thread that starts it.
        self._runner = asyncio.Runner(loop_factory=_fastest_loop())
        self._loop = self._runner.get_loop()
        self._stopping = asyncio.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="holdfast-portal", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts the coroutine in the loop."""
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
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
        self._thread.join(_JOIN_SECONDS)

    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def _serve(self) -> None:
        with self._runner:
            self._runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        await self._stopping.wait()


class Portal:
    """Runs coroutines for sync callers; started on first use, once per process."""

    def __init__(self, on_close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_close = on_close
        self._threads = PerProcess(self._start)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; an interrupt of the caller cancels it."""
        with shielded():
            return finished(self.start(coroutine))

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Has the coroutine run; `finished` waits for it."""
        running = self._threads.get()
        if running.is_current():
            coroutine.close()
            raise RuntimeError("a sync call inside Holdfast's own event loop would wait for itself; use the async one")
        with shielded():
            return running.submit(coroutine)

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
            running.submit(self._on_close()).add_done_callback(lambda _: running.stop())

    def _start(self) -> _LoopThread:
        atexit.register(self.close)
        return _LoopThread()


def finished(future: Future[T]) -> T:
    """The result; an interrupt of the caller cancels what is under way."""
    try:
        with shielded(future.cancel):
            return future.result()
    except BaseException:
        future.cancel()
        raise
