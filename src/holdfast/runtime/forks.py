"""Forks of this process: which process this is, and what must be let go before a fork or made anew after it.

A child has the memory of its parent but not its threads: a lock that another thread held is held for ever there, and
what belongs to the whole process (SQLite's table of file locks) says what is true of the parent only.
"""

from __future__ import annotations

import contextlib
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


def generation() -> int:
    """Tells this process from all that it was forked from with Python's knowledge, at less cost than `process`."""
    return _generation


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
        #: The forks under way, a signal handler's inside of another: whether it is its turn (empty if the handler
        #: of a signal raised before that was known), and the parts that know.
        self.forks: list[tuple[list[bool], list[Part]]] = []


_this_thread = _ThisThread()


def _before() -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    turn: list[bool] = []
    parts: list[Part] = []
    _this_thread.forks.append((turn, parts))
    note_acquired(turn, _turn, WAIT_SECONDS)
    for reference in list(_parts.values()):
        part = reference()
        if part is not None:
            parts.append(part)
            part.before_fork(deadline)


def _after_in_parent() -> None:
    if not _this_thread.forks:
        return  # a signal handler raised before anything was let go
    turn, parts = _this_thread.forks.pop()
    with contextlib.ExitStack() as ends:
        if any(turn):
            ends.callback(_turn.release)
        for part in parts:
            ends.callback(part.after_fork_in_parent)


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


def note_acquired(noted: list[bool], lock: Any, seconds: float) -> None:
    """Appends whether the lock came within this time, in one step.

    Python ignores what a signal handler raises in a callback of a fork; raised between the lock and the note of it, it
    would leave the lock held for ever.
    """
    noted.extend(map(lock.acquire, (True,), (max(0.0, seconds),)))


def free(held: Any) -> None:
    """Makes a lock free in a child, whichever thread of the parent held it."""
    held._at_fork_reinit()  # noqa: SLF001  (as the standard library does for its own)


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
