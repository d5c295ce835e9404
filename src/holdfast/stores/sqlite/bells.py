"""Waking idle workers, in this process and in others: one named pipe a queue, at most one byte in it.

A ring is one byte; whoever reads it is awake, everybody else sleeps on. A worker that got all it asked for rings
again, so that the next one comes when there is more. A ring that nobody listens for is not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

#: Who cannot hear (a file system without pipes) looks this often.
_DEAF_MS = 1_000
#: So many are kept open between two waits.
_MAX_OPEN = 1_024


class _Bell(NamedTuple):
    reader: int
    writer: int


class Bells:
    """The bells of one database."""

    def __init__(self, path: str) -> None:
        self._folder = Path(path + "-bells") if path else None
        self._lock = threading.Lock()
        #: Open for reading and writing, so that a ring between two waits is kept; the one waited for last comes last.
        self._open: dict[str, _Bell] = {}

    def ring(self, names: Iterable[str]) -> None:
        """Wakes one waiter of each bell, if there is one."""
        for name in names:
            if not self._ring_open(name) and self._folder is not None:
                _ring_file(self._folder / name)

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """True when one of the bells was rung, False after the timeout."""
        listeners = [listener for listener in map(self._listener, names) if listener is not None]
        if len(listeners) < len(names):
            timeout_ms = min(timeout_ms, _DEAF_MS)
        try:
            return await _first_byte(listeners, timeout_ms)
        finally:
            for listener in listeners:
                os.close(listener)

    def close(self) -> None:
        """Lets go of all bells."""
        with self._lock:
            for descriptor in {descriptor for bell in self._open.values() for descriptor in bell}:
                os.close(descriptor)
            self._open.clear()

    def _ring_open(self, name: str) -> bool:
        with self._lock:
            bell = self._open.get(name)
            if bell is not None:
                _ring(bell.writer)
            return bell is not None

    def _listener(self, name: str) -> int | None:
        """A descriptor to read from, for the caller to close; None if there are no pipes here, or none is left."""
        with self._lock:
            try:
                bell = self._open.pop(name, None) or self._make(name)
                self._open[name] = bell
                if len(self._open) > _MAX_OPEN and self._folder is not None:  # else it could not be found again
                    os.close(self._open.pop(next(iter(self._open))).reader)
                return os.dup(bell.reader)
            except OSError:
                return None

    def _make(self, name: str) -> _Bell:
        if self._folder is None:
            return _anonymous_bell()
        self._folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._folder / name)
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_NONBLOCK)
        return _Bell(descriptor, descriptor)


def _anonymous_bell() -> _Bell:
    bell = _Bell(*os.pipe())
    for descriptor in bell:
        os.set_blocking(descriptor, False)
    return bell


def _ring(descriptor: int) -> None:
    waiting = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
    if not waiting:
        os.write(descriptor, b"!")


def _ring_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # Nobody listens; or no descriptor is left, and what the ring tells of is committed all the same.
    try:
        _ring(descriptor)
    finally:
        os.close(descriptor)


async def _first_byte(listeners: Sequence[int], timeout_ms: int) -> bool:
    if any(map(_take_byte, listeners)):
        return True
    loop = asyncio.get_running_loop()
    rung: asyncio.Future[bool] = loop.create_future()

    def on_readable(listener: int) -> None:
        if not rung.done() and _take_byte(listener):
            rung.set_result(True)

    def on_timeout() -> None:
        if not rung.done():
            rung.set_result(False)

    for listener in listeners:
        loop.add_reader(listener, on_readable, listener)
    timer = loop.call_later(timeout_ms / 1000, on_timeout)
    try:
        return await rung
    finally:
        timer.cancel()
        for listener in listeners:
            loop.remove_reader(listener)


def _take_byte(listener: int) -> bool:
    try:
        return bool(os.read(listener, 1))
    except BlockingIOError:
        return False  # Another waiter was faster.
