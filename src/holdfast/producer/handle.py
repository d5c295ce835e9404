"""A handle follows one recorded task, from any process that can reach the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.core import lifecycle
from holdfast.core.durations import Duration, duration_ms, format_ms
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.priority import check_priority
from holdfast.core.progress import LogLine, Progress, kept_log, read_progress
from holdfast.core.task import FINAL_STATES, Attempt, State, Task
from holdfast.errors import Refused, ResultTimeout, TaskCancelled, TaskFailed, UnknownTask
from holdfast.producer.link import Link

R_co = TypeVar("R_co", covariant=True)

_FIRST_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.25
_POLL_GROWTH = 1.5


class TaskHandle(Generic[R_co]):
    """One task, by its id; `R_co` is what its function returns."""

    __slots__ = ("_decode", "_link", "task_id")

    def __init__(self, link: Link, task_id: str, decode: Callable[[bytes], R_co]) -> None:
        self.task_id = task_id
        self._link = link
        self._decode = decode

    async def astatus(self) -> Task:
        """All that the store knows of the task now; `UnknownTask` if it knows nothing."""
        (task,) = await self._link.insist(lambda store: store.get([self.task_id]))
        if task is None:
            raise self._unknown()
        return task

    async def ahistory(self) -> tuple[Attempt, ...]:
        """The runs of the task that have ended, the first one first."""
        return (await self.astatus()).history

    async def await_(self, timeout: Duration | None = None) -> Task:
        """The task once it has ended, however it ended; `ResultTimeout` if that takes too long."""
        limit_ms = None if timeout is None else duration_ms(timeout, "timeout")
        try:
            async with asyncio.timeout(None if limit_ms is None else limit_ms / 1000):
                return await self._ended()
        except TimeoutError:
            raise ResultTimeout(
                f"task {self.task_id} has not ended within {format_ms(limit_ms or 0)}; it goes on, ask again later"
            ) from None

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """What the function returned; `TaskFailed` or `TaskCancelled` if it ended otherwise."""
        task = await self.await_(timeout)
        if task.state is not State.SUCCEEDED:
            raise _failure(task)
        return self._decode(b"null" if task.result is None else self._link.opened(task, task.result))

    async def acancel(self, reason: str = "cancelled") -> bool:
        """True: it will not run (again). False: it is running and was told to stop. `Refused` if it has ended."""
        verdict = await self._changed(lifecycle.cancel(self.task_id, reason), "it has ended and cannot be cancelled")
        return verdict.state is not State.CLAIMED

    async def aprioritize(self, priority: int) -> None:
        """Gives the waiting task another priority; `Refused` if a worker has it, or it has ended."""
        change = lifecycle.prioritize(self.task_id, check_priority(priority))
        await self._changed(change, "only a task that waits has a place in its queue")

    async def aprogress(self) -> Progress:
        """How far the run is, as the task has told last; empty if it has told nothing."""
        return read_progress((await self.astatus()).progress)

    async def alog(self) -> tuple[LogLine, ...]:
        """The latest log lines of the task, the first one first."""
        return kept_log(await self.astatus())

    async def awhy(self) -> str:
        """Why the task stands where it stands, in words."""
        return await self._link.why(self.task_id)

    # -- the same for sync callers --------------------------------------------------------------------------

    def status(self) -> Task:
        """All that the store knows of the task now; `UnknownTask` if it knows nothing."""
        return self._link.run(self.astatus())

    def history(self) -> tuple[Attempt, ...]:
        """The runs of the task that have ended, the first one first."""
        return self._link.run(self.ahistory())

    def wait(self, timeout: Duration | None = None) -> Task:
        """The task once it has ended, however it ended; `ResultTimeout` if that takes too long."""
        return self._link.run(self.await_(timeout))

    def result(self, timeout: Duration | None = None) -> R_co:
        """What the function returned; `TaskFailed` or `TaskCancelled` if it ended otherwise."""
        return self._link.run(self.aresult(timeout))

    def cancel(self, reason: str = "cancelled") -> bool:
        """True: it will not run (again). False: it is running and was told to stop. `Refused` if it has ended."""
        return self._link.run(self.acancel(reason))

    def prioritize(self, priority: int) -> None:
        """Gives the waiting task another priority; `Refused` if a worker has it, or it has ended."""
        self._link.run(self.aprioritize(priority))

    def progress(self) -> Progress:
        """How far the run is, as the task has told last; empty if it has told nothing."""
        return self._link.run(self.aprogress())

    def log(self) -> tuple[LogLine, ...]:
        """The latest log lines of the task, the first one first."""
        return self._link.run(self.alog())

    def why(self) -> str:
        """Why the task stands where it stands, in words."""
        return self._link.run(self.awhy())

    # -- a value --------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"

    def __eq__(self, other: object) -> bool:
        return self.task_id == other.task_id if isinstance(other, TaskHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.task_id)

    async def _changed(self, change: Change, otherwise: str) -> Verdict:
        (verdict,) = await self._link.insist(lambda store: store.apply([change]))
        if verdict.applied:
            return verdict
        if verdict.state is None:
            raise self._unknown()
        raise Refused(f"task {self.task_id} is {verdict.state}: {otherwise}")

    def _unknown(self) -> UnknownTask:
        return UnknownTask(f"task {self.task_id} is not in this store: never recorded, or pruned after it ended")

    # -- the one place that polls ---------------------------------------------------------------------------

    async def _ended(self) -> Task:
        pause = _FIRST_POLL_SECONDS
        while (task := await self.astatus()).state not in FINAL_STATES:
            await asyncio.sleep(pause)
            pause = min(pause * _POLL_GROWTH, _LONGEST_POLL_SECONDS)
        return task


def _failure(task: Task) -> TaskFailed:
    name = f"task {task.task_id} ({task.type})"
    if task.state is State.CANCELLED:
        return TaskCancelled(f"{name} was cancelled: {task.reason or 'no reason given'}")
    errors = [attempt.error for attempt in task.history if attempt.error is not None]
    last = f"{errors[-1].type}: {errors[-1].message}" if errors else "no error recorded"
    attempts = "1 attempt" if task.attempt == 1 else f"{task.attempt} attempts"
    return TaskFailed(f"{name} is {task.state} ({task.reason or 'failed'}) after {attempts}: {last}")
