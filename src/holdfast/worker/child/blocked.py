"""Tasks that hold up others of their process: they block the event loop, hang, or wait for a slot that they have."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from inspect import unwrap
from pathlib import Path
from types import FrameType
from typing import Final

from holdfast.core.task import State, Task
from holdfast.worker.child.context import current_run
from holdfast.worker.child.run import Run
from holdfast.worker.child.slots import Slots
from holdfast.worker.child.watchdog import longest_return_ms

_log = logging.getLogger("holdfast.worker")

#: How often the event loop is asked for a sign of life. What a task blocks before it is asked is not counted, so this
#: is also the interval while no task runs: the first one may block at once.
PING_S: Final = 0.25
#: The shortest block that is logged.
BLOCKED_S: Final = 1.0
#: A block that goes on is logged after this long, and again when it is over.
STILL_BLOCKED_S: Final = 10.0
#: How many runs are remembered of which a wait for a slot was logged.
MAX_REMEMBERED_WAITS: Final = 1_000
#: A pause that took this much longer than planned: the whole process stood still, and no task is to blame.
STOOD_STILL_S: Final = 0.5


class BlockedLoop:
    """Warns when a task blocks the event loop, and says which one and where."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: Slots) -> None:
        self._loop = loop
        self._slots = slots
        self._thread_id = threading.get_ident()
        self._asked_at = 0.0
        #: None while the loop has been asked and has not answered.
        self._answered_at: float | None = 0.0
        self._logged = False
        #: What ran on the loop whenever it was looked at since it was asked.
        self._seen: Counter[str] = Counter()

    def watch(self) -> None:
        """Goes on until the process ends, in a thread of its own."""
        while True:
            before = time.monotonic()
            time.sleep(PING_S)
            now = time.monotonic()
            if now - before > PING_S + STOOD_STILL_S:
                self._asked_at = now
                self._seen.clear()
            self.look(now)

    def look(self, now: float) -> None:
        """Looks whether the loop has answered, and asks it again if so."""
        if self._answered_at is None:
            if (culprit := self._culprit()) is not None:
                self._seen[culprit] += 1
            if now - self._asked_at >= STILL_BLOCKED_S and self._seen and not self._logged:
                self._logged = True
                self._warn("has been", now - self._asked_at, " and still is")
            return
        blocked_s = self._answered_at - self._asked_at
        if blocked_s >= BLOCKED_S and self._seen:
            self._warn("was", blocked_s)
        self._seen.clear()
        self._logged = False
        if self._slots.running:
            self._asked_at, self._answered_at = now, None
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._answered_at = time.monotonic()

    def _warn(self, verb: str, blocked_s: float, more: str = "") -> None:
        (culprit, _), *_ = self._seen.most_common(1)
        _log.warning(
            "the event loop %s blocked for %.1fs by %s%s; use def or run blocking code in a thread",
            *(verb, blocked_s, culprit, more),
        )

    def _culprit(self) -> str | None:
        """The task whose step the loop is in, and its line; None if the loop is in no step, but waits for its turn."""
        step = asyncio.current_task(self._loop)
        if step is None:
            return None
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001  (there is no other way to it)
        run = next((run for run in list(self._slots.running.values()) if run.handle is step), None)
        if run is None:
            return f"code at {_place(frame)}"
        return f"{run.task.type}[{run.task.task_id}] at {_place(_own_frame(run, frame))}"


def _own_frame(run: Run, frame: FrameType | None) -> FrameType | None:
    """The innermost frame in the file of the task; the innermost of all if there is none."""
    code = getattr(unwrap(run.type.function), "__code__", None)
    found = frame
    while found is not None and code is not None:
        if found.f_code.co_filename == code.co_filename:
            return found
        found = found.f_back
    return frame


def _place(frame: FrameType | None) -> str:
    return "an unknown place" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class SlotWaits:
    """Warns when a task waits for another one that would need a slot of this process, and all of them are taken."""

    def __init__(self, slots: Slots, types: Collection[str]) -> None:
        self._slots = slots
        self._types = types
        #: Keys of the latest runs that were warned of.
        self._warned: deque[int] = deque(maxlen=MAX_REMEMBERED_WAITS)

    def note(self, task: Task) -> None:
        """A caller in this process has waited some seconds for a task; called in the context of that caller."""
        run = current_run.get(None)
        if run is None or run.key in self._warned or task.state is not State.READY or task.type not in self._types:
            return
        if self._slots.free > 0:
            return
        self._warned.append(run.key)
        _log.warning(
            "%s[%s] waits for %s[%s], which is ready, but all slots of this process are taken (%d) and it may wait for "
            "ever: raise --concurrency, start another worker, or let the awaited task enqueue what follows",
            *(run.task.type, run.task.task_id, task.type, task.task_id, self._slots.limit),
        )


def end_hanging_process(slots: Slots, lease_ms: int, end: Callable[[int], object]) -> None:
    """The other half of the watchdog: a run that blocks the event loop after its function has returned.

    Only its whole process can be ended. One that is found twice in a row has not just been held up with it.
    """
    limit_s = longest_return_ms(lease_ms) / 1000
    suspects: set[int] = set()
    while True:
        time.sleep(limit_s / 4)
        since_ns = time.monotonic_ns() - round(limit_s * 1e9)
        blocking = [run for run in slots.hanging(since_ns) if run.handle is not None and run.returned_at_ns]
        for run in blocking:
            if run.key in suspects:
                _log.error("task %s: blocks the event loop after it has returned; ending", run.task.task_id)
                end(1)
        suspects = {run.key for run in blocking}
