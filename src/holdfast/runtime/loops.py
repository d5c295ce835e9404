"""The event loops that Holdfast starts itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from holdfast.runtime.threads import imported

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def plain_loop() -> LoopFactory:
    """Makes loops of the standard library; on Windows those that can watch sockets, which psycopg needs."""
    return asyncio.SelectorEventLoop if sys.platform == "win32" else asyncio.new_event_loop


def fastest_loop() -> LoopFactory:
    """Makes uvloop's event loops if it is installed, plain ones otherwise."""
    try:
        uvloop = imported("uvloop")
    except ImportError:
        return plain_loop()
    factory: LoopFactory = uvloop.new_event_loop
    return factory
