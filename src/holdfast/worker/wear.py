"""When a child has done its share: so many tasks, or so much memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

from holdfast.core.sizes import format_bytes
from holdfast.worker.memory import resident_bytes
from holdfast.worker.options import WorkerOptions

_log = logging.getLogger("holdfast.worker")

#: From this share of its memory limit on, a child asks for a successor: its own tasks still need room to finish.
ASKS_AT: Final = 0.8


class Wear:
    """Counts the tasks of this process and weighs it."""

    def __init__(
        self,
        max_tasks: int | None,
        max_memory: int | None,
        memory_bytes: Callable[[], int] = lambda: resident_bytes(os.getpid()),
    ) -> None:
        self._max_tasks = max_tasks
        self._max_memory = max_memory
        self._memory_bytes = memory_bytes
        self._ended = 0
        self._told = False
        self._warned = False
        #: Nothing more may be taken on.
        self.full = False

    @classmethod
    def by(cls, options: WorkerOptions) -> Wear | None:
        """What these options ask for; None if it is nothing."""
        if options.max_tasks is None and options.max_memory is None:
            return None
        return cls(options.max_tasks, options.max_memory)

    def look(self, ended: int) -> str | None:
        """Adds so many tasks that have ended; the reason for a successor, the first time that there is one."""
        self._ended += ended
        reason = self._reason()
        if reason is None or self._told:
            return None
        self._told = True
        return reason

    def _reason(self) -> str | None:
        if self._max_memory is not None and (used := self._memory_bytes()) >= ASKS_AT * self._max_memory:
            return self._heavy(used, self._max_memory)
        if self._max_tasks is not None and self._ended >= self._max_tasks:
            return f"has run {self._ended:,} tasks"
        return None

    def _heavy(self, used: int, limit: int) -> str | None:
        """A child that is heavy before its first task would only be followed by another one like it."""
        if not self._ended:
            if not self._warned:
                _log.warning(
                    "max-memory: the app uses %s of %s before its first task", format_bytes(used), format_bytes(limit)
                )
            self._warned = True
            return None
        self.full = used >= limit
        return f"uses {format_bytes(used)} of memory"
