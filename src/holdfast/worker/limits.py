"""Hard time limits: a task that overstays costs its process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from holdfast.clock import Clock
from holdfast.core.durations import format_ms
from holdfast.worker.child_process import ChildProcess, Guilt
from holdfast.worker.messages import HeldTask

_log = logging.getLogger("holdfast.worker")

#: How long a task that is alone in its process may take to heed its cancellation.
HEED_MS = 5_000
#: Two looks are at least this far apart, however close the deadlines are.
_CLOSEST_MS = 20


class Limits:
    """Kills the children of tasks that overstay; one timer for all, and none while no task has a limit.

    The timer stands at the soonest deadline that there was; what has ended until then costs one look too many, and
    nothing while it runs.
    """

    def __init__(self, clock: Clock, children: Callable[[], Collection[ChildProcess]]) -> None:
        self._clock = clock
        self._children = children
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at_ms = 0

    def watch(self, child: ChildProcess, tasks: Sequence[HeldTask]) -> None:
        """From now on counts the time of those of these tasks that have a hard limit."""
        limited = [(task.key, limit) for task in tasks if (limit := task.hard_timeout_ms) is not None]
        if limited:
            now_ms = self._clock.monotonic_ms()
            child.deadlines.update((key, now_ms + limit) for key, limit in limited)
            self._wake_at(now_ms + min(limit for _, limit in limited))

    def give_time_to_heed(self, child: ChildProcess, cancelled: Sequence[int]) -> None:
        """A cancelled task that is alone in its process has to end soon: its end harms nobody else."""
        held = [key for key in cancelled if key in child.holds]
        if child.alone and held:
            until_ms = self._clock.monotonic_ms() + HEED_MS
            child.deadlines.update((key, min(until_ms, child.deadlines.get(key, until_ms))) for key in held)
            self._wake_at(until_ms)

    def stop(self) -> None:
        """Kills nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wake_at(self, moment_ms: int) -> None:
        if self._timer is not None and self._fires_at_ms <= moment_ms:
            return
        self.stop()
        self._fires_at_ms = moment_ms
        wait_ms = max(_CLOSEST_MS, moment_ms - self._clock.monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        for child in list(self._children()):
            overdue = [key for key, deadline_ms in child.deadlines.items() if deadline_ms <= now_ms]
            if overdue:
                self._condemn(child, overdue)
        left = [deadline_ms for child in self._children() for deadline_ms in child.deadlines.values()]
        if left:
            self._wake_at(min(left))

    def _condemn(self, child: ChildProcess, overdue: list[int]) -> None:
        guilty = {key: Guilt.UNHEEDING if key in child.cancelling else Guilt.OVERSTAYED for key in overdue}
        for key, guilt in guilty.items():
            if (held := child.holds.get(key)) is not None:
                _log.error("child %s is killed: task %s %s", child.name, held.task_id, what_it_did(guilt, held))
        child.condemn(guilty)


def what_it_did(guilt: Guilt, held: HeldTask) -> str:
    """For logs and for the task's history."""
    if guilt is Guilt.UNHEEDING:
        return "did not heed its cancellation"
    return f"ran longer than its hard limit of {format_ms(held.hard_timeout_ms or 0)}"
