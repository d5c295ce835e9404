"""Threads that a signal handler may start and wait for, whatever its own thread was doing when it came.

`threading.Thread.start` takes locks that the interrupted thread may hold, and so does an import that it has begun.
"""

from __future__ import annotations

import _thread
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

#: After this long the importing thread seems to wait for a module that the caller itself was importing.
_IMPORT_SECONDS: Final = 10.0


def start_thread(work: Callable[[], object], name: str) -> None:
    """Does this work in a daemon thread, which another thread starts; returns before it has begun."""
    thread = threading.Thread(target=work, name=name, daemon=True)

    def start() -> None:
        try:
            thread.start()
        except RuntimeError:  # there are too many threads, but this one is there
            work()

    _thread.start_new_thread(start, ())


def imported(name: str) -> Any:
    """The module; if it is new, another thread imports it, so that a signal handler never finds half of it."""
    if (known := sys.modules.get(name)) is not None and name in _finished:
        return known
    ended = _thread.allocate_lock()
    ended.acquire()

    def work() -> None:
        try:
            importlib.import_module(name)
        except BaseException:  # noqa: BLE001  (raised below, in the thread that asked)
            return
        finally:
            ended.release()

    _thread.start_new_thread(work, ())
    ended.acquire(timeout=_IMPORT_SECONDS)
    module = importlib.import_module(name)
    _finished.add(name)
    return module


#: The modules that were imported here to their end.
_finished: set[str] = set()
