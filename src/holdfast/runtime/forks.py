"""Forks of this process: which process this is, and what must be let go before a fork or made anew after it.

A child has the memory of its parent but not its threads: a lock that another thread held is held for ever there, and
what belongs to the whole process (SQLite's table of file locks) says what is true of the parent only.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, Final, Protocol

#: How long a fork waits, in all, for what must be let go before it.
WAIT_SECONDS: Final = 15.0
_generation = 0


class Part(Protocol):
    """Something that a fork must not find in use."""

    def before_fork(self, deadline: float) -> None:
        """Lets go of what a child must not inherit, at the latest when the monotonic clock shows `deadline`."""
        ...

    def after_fork_in_parent(self) -> None:
        """Goes on as before."""
        ...

    def after_fork_in_child(self) -> None:
        """Begins anew, without the threads of the parent."""
        ...


def process() -> tuple[int, int]:
    """Tells this process from all that it was forked from; a pid alone may come again."""
    return _generation, os.getpid()


def watch(part: Part) -> None:
    """Has the part told of every fork for as long as it lives."""
    key = id(part)
    _parts[key] = weakref.ref(part, lambda _: _parts.pop(key, None))


def lock() -> Any:
    """A reentrant lock (a signal handler may run while its thread holds it) that is free in a forked child."""
    made = threading.RLock()
    key = id(made)
    _locks[key] = weakref.ref(made, lambda _: _locks.pop(key, None))
    return made


#: Plain dicts: their values are copied in one step, whatever other threads do to them.
_parts: dict[int, weakref.ref[Part]] = {}
_locks: dict[int, weakref.ref[Any]] = {}
#: One fork at a time, or two of them could wait for each other.
_turn = threading.RLock()


class _ThisThread(threading.local):
    def __init__(self) -> None:
        #: The forks under way, a signal handler's inside of another: whether it is its turn, and the parts that know.
        self.forks: list[tuple[bool, list[Part]]] = []


_this_thread = _ThisThread()


def _before() -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    turn = _turn.acquire(timeout=WAIT_SECONDS)
    parts: list[Part] = []
    _this_thread.forks.append((turn, parts))
    for reference in list(_parts.values()):
        part = reference()
        if part is not None:
            parts.append(part)
            part.before_fork(deadline)


def _after_in_parent() -> None:
    turn, parts = _this_thread.forks.pop()
    for part in parts:
        part.after_fork_in_parent()
    if turn:
        _turn.release()


def _after_in_child() -> None:
    global _generation  # noqa: PLW0603  (of this process, like its pid)
    _generation += 1
    _this_thread.forks.clear()
    free(_turn)
    for reference in list(_locks.values()):
        if (held := reference()) is not None:
            free(held)
    for known in list(_parts.values()):
        if (part := known()) is not None:
            part.after_fork_in_child()


def free(held: Any) -> None:
    """Makes a lock free in a child, whichever thread of the parent held it."""
    held._at_fork_reinit()  # noqa: SLF001  (as the standard library does for its own)


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
