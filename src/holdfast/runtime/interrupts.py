"""Sections of a thread that an exception from outside must not leave half done.

A worker may raise an exception in the thread of a `def` task, at any bytecode: worker/child/interrupt.py. Where that
would leave a lock held or a connection lost, the code says `with shielded():`, and the exception waits for the end of
the block. In all other threads nothing happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

#: Ends what the block waits for, so that it need not be waited for; called from any thread, and maybe twice.
Cancel = Callable[[], object]


class Interruptible(Protocol):
    """A thread into which an exception may come from outside."""

    #: Of the innermost block.
    cancel: Cancel | None

    def shield(self) -> None:
        """None comes from now on; what is on its way is raised here."""
        ...

    def unshield(self) -> None:
        """It may come again; what came meanwhile is raised here."""
        ...


class _ThisThread(threading.local):
    interruption: Interruptible | None = None


this_thread = _ThisThread()


class shielded:  # noqa: N801  (reads as what it does: `with shielded():`)
    """A block that runs to its end, or until `cancel` has ended what it waits for."""

    __slots__ = ("_cancel", "_interruption")

    def __init__(self, cancel: Cancel | None = None) -> None:
        self._cancel = cancel
        self._interruption = this_thread.interruption

    def __enter__(self) -> None:
        interruption = self._interruption
        if interruption is not None:
            interruption.cancel, self._cancel = self._cancel, interruption.cancel
            interruption.shield()

    def __exit__(self, *_: object) -> None:
        interruption = self._interruption
        if interruption is not None:
            interruption.cancel = self._cancel
            interruption.unshield()
