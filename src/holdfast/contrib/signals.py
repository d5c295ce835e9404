"""Servers tell what they serve of their end only after the last open request; signals tell at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_ENDINGS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def told_of_the_end(leave: Callable[[], None]) -> Iterator[None]:
    """Calls `leave` on this event loop when the process is told to end, and the handler of the server as well.

    Without effect outside of the main thread, where no handler can be set, and for signals without a Python handler.
    """
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(leave)
        before[signal.Signals(number)](number, frame)

    for number in _ENDINGS:
        handler = signal.getsignal(number)
        if callable(handler):
            with contextlib.suppress(ValueError):  # not the main thread
                before[number] = handler
                signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)
