"""What was acknowledged in the last seconds, to be sent again if the server came back without it.

The number of arrival that every answer brings along is the canary: it only grows, so a call that finds a smaller one
than an earlier call did proves that the server has lost its tail. Sending again is harmless, since ids make it so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from holdfast.core.task import NewTask

#: Longer than a failover takes to be noticed.
WINDOW_MS: Final = 15_000
MAX_TASKS: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024


#: How long a loss may wait for a thread that is inside here; the next call notices it too.
_NOTICE_S: Final = 1.0


class _Batch(NamedTuple):
    acknowledged_at_ms: int
    tasks: Sequence[NewTask]
    size: int
    number: int


class ReplayWindow:
    """The acknowledged tasks of the last seconds, within bounds; oldest go first.

    No call waits for the lock without an end: its thread may be in a signal handler that waits for the call.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        #: Sync callers come in threads of their own, and every event loop has one too.
        self._lock = threading.Lock()
        #: What came last; put here in one step, and taken by the next call that gets the lock.
        self._arrived: deque[_Batch] = deque()
        self._batches: deque[_Batch] = deque()
        self._tasks = self._bytes = 0
        self._highest = 0
        #: Acknowledged once, and lost: kept until they are acknowledged again.
        self._lost: list[Sequence[NewTask]] = []

    def remember(self, tasks: Sequence[NewTask], number: int) -> None:
        """These were acknowledged, and the last number of arrival was this."""
        size = sum([len(task.payload) for task in tasks])
        self._arrived.append(_Batch(self._monotonic_ms(), tasks, size, number))
        if self._lock.acquire(blocking=False):
            try:
                self._take_arrived()
            finally:
                self._lock.release()

    @property
    def lowest(self) -> int:
        """No call that begins now may find the server below this number."""
        return max([self._highest, *[batch.number for batch in self._arrived.copy()]])

    def notice(self, lowest: int, number: int) -> int:
        """A call that began at `lowest` found Redis at `number`; returns how many tasks have to be sent again."""
        if number >= lowest or not self._lock.acquire(timeout=_NOTICE_S):
            return 0
        try:
            self._take_arrived()
            if number >= self._highest:
                return 0  # another call has noticed before
            self._lost += [batch.tasks for batch in self._batches]
            self._batches.clear()
            self._tasks = self._bytes = 0
            self._highest = number
            return sum(map(len, self._lost))
        finally:
            self._lock.release()

    @property
    def lost(self) -> Sequence[NewTask] | None:
        """The next batch to send again, if there is one."""
        return self._lost[0] if self._lost else None

    def found(self, tasks: Sequence[NewTask], number: int) -> None:
        """A lost batch was acknowledged again."""
        with suppress(ValueError):  # another call has sent it too
            self._lost.remove(tasks)
        self.remember(tasks, number)

    def _take_arrived(self) -> None:
        while self._arrived:
            batch = self._arrived.popleft()
            self._batches.append(batch)
            self._tasks += len(batch.tasks)
            self._bytes += batch.size
            self._highest = max(self._highest, batch.number)
        self._trim(self._monotonic_ms())

    def _trim(self, now_ms: int) -> None:
        too_old_ms = now_ms - WINDOW_MS
        while self._batches and (
            self._batches[0].acknowledged_at_ms < too_old_ms or self._tasks > MAX_TASKS or self._bytes > MAX_BYTES
        ):
            batch = self._batches.popleft()
            self._tasks -= len(batch.tasks)
            self._bytes -= batch.size
