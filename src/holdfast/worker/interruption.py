"""An exception from outside in the thread of a run: at most one, and only while its function runs.

Two threads and no lock, which the interrupted one could be left holding. Each side says what it is about to do and then
looks at what the other has said: the event loop says that it sends and looks for a shield, the thread puts up its
shield and looks for that. So at least one of them sees the other, and the thread then waits for the loop's few steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import get_ident
from time import sleep
from typing import TYPE_CHECKING, Any

from holdfast.shield import Cancel, this_thread

if TYPE_CHECKING:
    from holdfast.worker.run import Run

_NOTHING: Any = object()


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

    def _await_sent(self) -> None:
        while not self._sent:
            sleep(0)

    def _take_back(self) -> None:
        """Puts a harmless exception in the place of what has not been raised yet, and catches that.

        To take it back by NULL would leave CPython looking for an exception at every turn, in all threads.
        """
        try:
            _raise_in(self._thread, _TakenBack)
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


def interruptible(run: Run, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function gives; meanwhile the run can be ended from outside, and afterwards it cannot.

    A result that is there when the exception comes is given: then the function was faster.
    """
    result = _NOTHING
    interruption = Interruption()
    try:
        try:
            this_thread.interruption = run.thread = interruption
            if run.ending is not None:
                run.raise_if_ending()  # who wanted its end before this has found no thread to tell
            result = function(*args, **kwargs)
        finally:
            interruption.close()
    except BaseException:
        interruption.close()
        if result is _NOTHING:
            raise
    return result


class _TakenBack(BaseException):
    """Takes the place of an exception that came too late."""


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Has the interpreter raise it there, in place of what it was to raise."""
    _set_async_exc(thread, error)


_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = [ctypes.c_ulong, ctypes.py_object]
_set_async_exc.restype = ctypes.c_int
