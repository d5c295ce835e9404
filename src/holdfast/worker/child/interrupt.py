"""Interruptions: exceptions from outside in the thread of a run, cancellations while a task waits, signals.

The thread of a run gets at most one exception, and only while its function runs.

Two threads and no lock, which the interrupted one could be left holding. Each side says what it is about to do and then
looks at what the other has said: the event loop says that it sends and looks for a shield, the thread puts up its
shield and looks for that. So at least one of them sees the other, and the thread then waits for the loop's few steps.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Awaitable
from signal import SIGURG, pthread_kill
from threading import get_ident
from time import sleep
from typing import Any, Final, TypeVar

from holdfast.runtime.interrupts import Cancel, this_thread

T = TypeVar("T")

#: The signals that a child leaves to its supervisor, and how Python itself handles them.
_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interruption:
    """Made in the thread that it belongs to; `send` is for the event loop, all else for that thread."""

    __slots__ = ("_closed", "_deferred", "_sending", "_sent", "_shields", "_thread", "cancel")

    def __init__(self) -> None:
        self._thread = get_ident()
        self._closed = False
        self._shields = 0
        self._sending = False
        self._sent = False
        self._deferred: type[BaseException] | None = None
        #: Ends what the innermost shielded block waits for.
        self.cancel: Cancel | None = None

    # -- in the thread --------------------------------------------------------------------------------------

    def close(self) -> None:
        """It cannot come any more, and if it was on its way, it is gone; again, if it came in the middle of this."""
        self._closed = True
        if self._sending:
            self._await_sent()
            self._take_back()
        this_thread.interruption = None

    def shield(self) -> None:
        """None comes from now on; what is on its way is raised here."""
        self._shields += 1
        if self._sending:
            self._await_sent()
            if self._deferred is None:
                sleep(0)  # after a call, the interpreter looks whether something was sent
                self._take_back()
            elif self.cancel is not None:
                self.cancel()

    def unshield(self) -> None:
        """It may come again; what came meanwhile is raised here."""
        self._shields -= 1
        if self._sending and not self._shields:
            self._await_sent()
            deferred, self._deferred = self._deferred, None
            if deferred is not None:
                raise deferred

    def forget(self) -> None:
        """In a forked process: what is on its way, or comes at the end of a shield, is meant for the parent."""
        self._sending, self._deferred = False, None

    def _await_sent(self) -> None:
        while not self._sent:
            sleep(0)

    def _take_back(self) -> None:
        """Puts a harmless exception in the place of what has not been raised yet, and catches that.

        To take it back by NULL would leave CPython looking for an exception at every turn, in all threads.
        """
        try:
            _set_async_exc(self._thread, _TakenBack)
            while True:
                sleep(0)
        except _TakenBack:
            return

    # -- on the event loop ----------------------------------------------------------------------------------

    def send(self, error: type[BaseException]) -> bool:
        """Raises this in the thread, once, at its next bytecode or at the end of its shield; False if it has left."""
        if not self._sending:
            self._sending = True
            try:
                self._send(error)
            finally:
                self._sent = True
        return not self._closed

    def _send(self, error: type[BaseException]) -> None:
        if self._closed:
            return
        if not self._shields:
            _raise_in(self._thread, error)
            return
        self._deferred, cancel = error, self.cancel
        if cancel is not None:
            cancel()


class _TakenBack(BaseException):
    """Takes the place of an exception that came too late."""


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Has the interpreter raise it there, in place of what it was to raise, also while it waits in the kernel.

    Calls no Python code after it has asked: CPython 3.11 does not get into a traced function until it is raised.
    """
    _set_async_exc(thread, error)
    if thread == _woken_thread:
        pthread_kill(thread, _WAKE)


_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = [ctypes.c_ulong, ctypes.py_object]
_set_async_exc.restype = ctypes.c_int


# -- waking the main thread ------------------------------------------------------------------------------------

#: Ends a system call of the main thread, so that what was sent to it is raised at once. Few programs use it, and a
#: process that does not handle it ignores it.
_WAKE: Final = SIGURG
#: The main thread, if it is to be woken.
_woken_thread: int | None = None


def interrupt_system_calls() -> None:
    """An interruption of the main thread, which calls this, also ends what it waits for in the kernel."""
    global _woken_thread  # noqa: PLW0603  (a process has one main thread)
    signal.signal(_WAKE, _woken)
    _woken_thread = get_ident()


def _woken(*_: object) -> None:
    """Called by the interpreter, which raises here what was sent."""


# -- waiting in a task -----------------------------------------------------------------------------------------


def in_a_loop() -> bool:
    """Whether this is the thread of a running event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def to_the_end(step: Awaitable[T]) -> T:
    """Sees a step through: cancellations, however many, wait for its end, since its outcome must be known."""
    under_way = asyncio.ensure_future(step)
    interruption: asyncio.CancelledError | None = None
    while not under_way.done():
        try:
            await asyncio.wait([under_way])
        except asyncio.CancelledError as cancelled:
            interruption = cancelled
    result = under_way.result()
    if interruption is not None:
        raise interruption
    return result


# -- signals of the process -------------------------------------------------------------------------------------


def _left_to_the_supervisor(*_: object) -> None:
    """Handles signals in a child by doing nothing."""


def leave_signals_to_supervisor() -> None:
    """The supervisor decides when a child leaves; a handler, unlike SIG_IGN, is not inherited by subprocesses."""
    for number in _DEFAULTS:
        signal.signal(number, _left_to_the_supervisor)
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_begin_anew)


class _OfThisThread(threading.local):
    def __init__(self) -> None:
        #: What was blocked before each fork that is under way here.
        self.blocked: list[set[int | signal.Signals]] = []


_of_this_thread = _OfThisThread()


def _hold_signals() -> None:
    """A signal to a forked process that still has the handlers of this one would be lost: it waits for its own."""
    blocked = _of_this_thread.blocked
    blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))  # first: the next step may be left by an exception
    signal.pthread_sigmask(signal.SIG_BLOCK, list(_DEFAULTS))


def _let_signals_in() -> None:
    blocked = _of_this_thread.blocked
    if blocked:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked[-1])
        blocked.pop()


def _begin_anew() -> None:
    """In a process that a task forks: it can be terminated as any other, and wakes no event loop but its own."""
    if isinstance(this_thread.interruption, Interruption):
        this_thread.interruption.forget()
    signal.set_wakeup_fd(-1)
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is _left_to_the_supervisor:
            signal.signal(number, default)
    _let_signals_in()
