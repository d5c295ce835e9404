"""The time that a run has."""

from __future__ import annotations

import asyncio

from holdfast.clock import SystemClock
from holdfast.core.durations import format_ms
from holdfast.core.outcomes import Cancel
from holdfast.core.task import Claimed
from holdfast.core.tokens import fencing_token
from holdfast.worker.run import Ending, Run


class TimeLimit:
    """Asks a run to end when its time is over; its process is killed by the supervisor, if it comes to that."""

    __slots__ = ("_over", "_run", "_timeout_ms", "_timer", "deadline_ms", "ends_at_ms")

    def __init__(self, run: Run, timeout_ms: int | None, hard_timeout_ms: int) -> None:
        clock, limit_ms = SystemClock(), timeout_ms or hard_timeout_ms
        self._run = run
        self._timeout_ms = timeout_ms
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        #: Monotonic, and the same moment by the clock of this machine.
        self.ends_at_ms = clock.monotonic_ms() + limit_ms
        self.deadline_ms = clock.now_ms() + limit_ms

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Counts from now on; from any thread."""
        if self._timeout_ms is not None:
            loop.call_soon_threadsafe(self._arm, loop, self._timeout_ms / 1000)

    def stop(self) -> None:
        """The run is over."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        if not self._over:
            self._timer = loop.call_later(seconds, self._strike)

    def _strike(self) -> None:
        if self._run.ending is None:
            self._run.end(Ending.TIMED_OUT)


def begin_limits(run: Run) -> None:
    """Starts the time of a run that has a limit; one that comes too late for its first start is not to start."""
    policy = run.task.policy
    _refuse_expired(run.task)
    hard_timeout_ms = policy.hard_timeout_ms or policy.timeout_ms
    if hard_timeout_ms is not None:
        run.limit = TimeLimit(run, policy.timeout_ms, hard_timeout_ms)
        if run.workplace is not None:
            run.limit.begin(run.workplace.loop)


def _refuse_expired(task: Claimed) -> None:
    """By the store's clock alone: what is claimed in time is begun, however long the way here was."""
    expires_ms = task.policy.expires_ms
    if expires_ms is None or fencing_token(task.token) > 1:
        return
    if task.created_at_ms + expires_ms <= task.claimed_at_ms:
        raise Cancel(f"expired: not started within {format_ms(expires_ms)}")
