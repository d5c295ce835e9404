"""Waking idle workers, in this process and in others: one named pipe a queue, at most one byte in it.

A wake-up is one byte; the waiter that reads it is awake, all others sleep on. A worker that got all it asked for
notifies again, so that the next one comes when there is more. A wake-up without a waiter is not kept. Where there are
no named pipes, as on Windows, waiters poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.runtime import descriptors

try:
    import fcntl
    import termios
except ImportError:  # Windows
    HAS_PIPES: Final = False
else:
    HAS_PIPES: Final = hasattr(os, "mkfifo")  # type: ignore[misc]  # one of the two

#: A waiter without a pipe (a file system that has none, no descriptor left) returns this often; more often on a
#: system without pipes, where every waiter does.
_POLL_MS = 1_000 if HAS_PIPES else 100
#: A folder of pipes that was deleted is noticed within this time.
_LOOK_MS = 1_000
#: The most pipes that are kept open, and the part of the process's descriptors that they may take; a waiter for
#: more queues polls for the rest of them.
MAX_OPEN = 1_024
_SHARE_OF_DESCRIPTORS = 4
_LOCK_SECONDS = 0.1


class _Pipe:
    """An open pipe: its two ends, and its waiters."""

    __slots__ = ("identity", "is_lent", "reader", "waiters", "writer")

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.writer = writer
        self.waiters = 0
        #: Whether one of the waiters uses the read end itself; an event loop takes a descriptor once only.
        self.is_lent = False
        status = os.fstat(reader)
        self.identity = status.st_dev, status.st_ino

    def close(self) -> None:
        for descriptor in {self.reader, self.writer}:
            os.close(descriptor)


class _Waiter(NamedTuple):
    """A waiter on the read end of a pipe, or on a copy of it."""

    pipe: _Pipe
    descriptor: int


class Wakeups:
    """The wake-ups of one database."""

    def __init__(self, path: str) -> None:
        self._folder = Path(path + "-wakeups") if path else None
        #: Never waited for by `notify`: the thread that holds it may be in a signal handler that waits for the wake-up.
        self._lock = threading.Lock()
        #: Open for reading and writing, so that a wake-up between two waits is kept; the latest waited for comes last.
        self._open: dict[str, _Pipe] = {}

    def notify(self, names: Iterable[str]) -> None:
        """Wakes one waiter of each name, if there is one; never fails, since what it tells of is committed."""
        for name in names if HAS_PIPES else ():
            with contextlib.suppress(OSError):
                if not self._notify_open(name) and self._folder is not None:
                    _notify_file(self._folder / name)

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """True when one of the wake-ups came, False after the timeout."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_ms / 1000
        while True:
            seen = self._folder_state()
            waiters = self._taken(names)
            left_ms = (deadline - now()) * 1000
            polls = len(waiters) < len(names)
            try:
                woken = await self._first_byte(waiters, max(0.0, min(left_ms, _POLL_MS) if polls else left_ms), seen)
            finally:
                self._let_go(waiters)
            if woken is not None:
                return woken
            # Pipes were made or deleted: perhaps those that were waited for.

    def close(self) -> None:
        """Closes all pipes; one with a waiter is closed after its last one."""
        with self._lock:
            for pipe in self._open.values():
                if not pipe.waiters:
                    pipe.close()
            self._open.clear()

    def start_anew(self) -> None:
        """In a forked child: closes what the parent waits on."""
        self._lock = threading.Lock()
        for pipe in self._open.values():
            pipe.close()
        self._open.clear()

    def _notify_open(self, name: str) -> bool:
        # In memory there is no other way to wake a waiter, and the lock is held for a moment only.
        if not self._lock.acquire(timeout=0 if self._folder is not None else _LOCK_SECONDS):
            return False
        try:
            pipe = self._open.get(name)
            if pipe is not None:
                _notify(pipe.writer)
            return pipe is not None
        finally:
            self._lock.release()

    def _taken(self, names: Sequence[str]) -> list[_Waiter]:
        """A waiter for each of the names that can be waited for; pipes are made if need be, and kept until let go."""
        if not HAS_PIPES:
            return []
        most = min(MAX_OPEN, descriptors.limit() // _SHARE_OF_DESCRIPTORS)
        with self._lock:
            return [waiter for name in names if (waiter := self._take(name, most)) is not None]

    def _take(self, name: str, most: int) -> _Waiter | None:
        pipe = self._open.pop(name, None)
        try:
            if pipe is not None and self._is_lost(name, pipe):
                if not pipe.waiters:
                    pipe.close()
                pipe = None
            if pipe is None:
                if not self._has_room(most):
                    return None
                pipe = self._make(name)
            self._open[name] = pipe
            descriptor = os.dup(pipe.reader) if pipe.is_lent else pipe.reader
        except OSError:
            return None
        pipe.is_lent = True
        pipe.waiters += 1
        return _Waiter(pipe, descriptor)

    def _has_room(self, most: int) -> bool:
        """Whether one more may be opened; one without waiters is closed for it, the oldest first."""
        if len(self._open) < most:
            return True
        if self._folder is None:
            return False  # One that was closed could not be found again.
        idle = next((name for name, pipe in self._open.items() if not pipe.waiters), None)
        if idle is None:
            return False
        self._open.pop(idle).close()
        return True

    def _let_go(self, waiters: Sequence[_Waiter]) -> None:
        with self._lock:
            known = {id(pipe) for pipe in self._open.values()}
            for pipe, descriptor in waiters:
                pipe.waiters -= 1
                if descriptor == pipe.reader:
                    pipe.is_lent = False
                else:
                    os.close(descriptor)
                if not pipe.waiters and id(pipe) not in known:  # Closed or replaced meanwhile.
                    pipe.close()

    def _is_lost(self, name: str, pipe: _Pipe) -> bool:
        """Whether the pipe was deleted, as by a program that cleans up: no other process could notify it."""
        if self._folder is None:
            return False
        try:
            status = (self._folder / name).stat()
        except OSError:
            return True
        return pipe.identity != (status.st_dev, status.st_ino)

    def _folder_state(self) -> tuple[int, ...]:
        """Changes when pipes are made or deleted."""
        if self._folder is None:
            return ()
        try:
            status = self._folder.stat()
        except OSError:
            return ()
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _make(self, name: str) -> _Pipe:
        if self._folder is None:
            return _anonymous_pipe()
        self._folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._folder / name)
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_NONBLOCK)
        return _Pipe(descriptor, descriptor)

    async def _first_byte(self, waiters: Sequence[_Waiter], timeout_ms: float, seen: tuple[int, ...]) -> bool | None:
        """Whether a wake-up came in time; None as soon as the folder of pipes is not as it was seen."""
        listeners = [waiter.descriptor for waiter in waiters]
        if any(map(_take_byte, listeners)):
            return True
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool | None] = loop.create_future()
        looking: asyncio.TimerHandle | None = None

        def end(answer: bool | None) -> None:
            if not woken.done():
                woken.set_result(answer)

        def on_readable(listener: int) -> None:
            if not woken.done() and _take_byte(listener):
                end(True)

        def look() -> None:
            nonlocal looking
            state = self._folder_state()
            if listeners and (state != seen or (self._folder is not None and not state)):
                end(None)
            else:
                looking = loop.call_later(_LOOK_MS / 1000, look)

        for listener in listeners:
            loop.add_reader(listener, on_readable, listener)
        timer = loop.call_later(timeout_ms / 1000, end, False)
        looking = loop.call_later(_LOOK_MS / 1000, look)
        try:
            return await woken
        finally:
            timer.cancel()
            looking.cancel()  # the latest one
            for listener in listeners:
                loop.remove_reader(listener)


def _anonymous_pipe() -> _Pipe:
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        os.set_blocking(descriptor, False)
    return _Pipe(reader, writer)


def _notify(descriptor: int) -> None:
    waiting = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
    if not waiting:
        os.write(descriptor, b"!")


def _notify_file(path: Path) -> None:
    # An error means that there is no waiter, or no descriptor left.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        _notify(descriptor)
    finally:
        os.close(descriptor)


def _take_byte(listener: int) -> bool:
    try:
        return bool(os.read(listener, 1))
    except BlockingIOError:
        return False  # Another waiter was faster.
