"""A handle follows one recorded task, from any process that can reach the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.core.durations import Duration, duration_ms
from holdfast.core.habits import HANDLE_HABITS, habit
from holdfast.core.priority import check_priority
from holdfast.core.task import FINAL_STATES, Attempt, LogLine, Progress, State, Task, kept_log, shown_progress
from holdfast.errors import Refused, TaskCancelled, TaskFailed, UnknownTask, UsageError
from holdfast.producer.portal import StoreLink
from holdfast.producer.task_info import TaskInfo, task_info

if TYPE_CHECKING:
    from holdfast.core.lifecycle import Change, Verdict

R_co = TypeVar("R_co", covariant=True)

_FIRST_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.25
_POLL_GROWTH = 1.5
#: A wait asks this often whether any worker serves the queue, and says so once if none does.
_WARN_AFTER_SECONDS = 5.0


class TaskHandle(Generic[R_co]):
    """One task, by its id; `R_co` is what its function returns."""

    __slots__ = ("_decode", "_known_end", "_link", "task_id")

    def __init__(self, link: StoreLink, task_id: str, decode: Callable[[bytes], R_co]) -> None:
        self.task_id = task_id
        self._link = link
        self._decode = decode
        #: How the task has ended, if this handle knows.
        self._known_end: Task | None = None

    # -- as an answer of a web framework --------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """As a pair, for `dict(handle)`, which FastAPI makes of what a route returns: `{"task_id": …}`."""
        return iter((("task_id", self.task_id),))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """For pydantic: an instance, serialised as `{"task_id": …}`."""
        del source, handler
        from pydantic_core import core_schema

        form = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.is_instance_schema(cls, serialization=form)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        """For OpenAPI: an object with the id."""
        del schema, handler
        return {"type": "object", "properties": {"task_id": {"type": "string"}}, "required": ["task_id"]}

    # -- following ------------------------------------------------------------------------------------------

    @property
    def link(self) -> StoreLink:
        """What it has in common with the other handles of its app."""
        return self._link

    def as_ended(self, task: Task) -> TaskHandle[R_co]:
        """The same handle, which knows how its task has ended: `wait` and `result` do not ask the store."""
        handle = TaskHandle(self._link, self.task_id, self._decode)
        handle._known_end = task
        return handle

    async def astatus(self) -> TaskInfo:
        """All that the store knows of the task now; `UnknownTask` if it knows nothing."""
        return task_info(self._link, await self._record())

    async def _record(self) -> Task:
        (task,) = await self._link.store().get([self.task_id])
        if task is None:
            raise unknown_task(self.task_id)
        return task

    async def ahistory(self) -> tuple[Attempt, ...]:
        """The runs of the task that have ended, the first one first."""
        return (await self._record()).history

    async def await_(self, timeout: Duration | None = None) -> TaskInfo:
        """The task once it has ended, however it ended; `ResultTimeout` if that takes too long."""
        return task_info(self._link, await self._ended_within(timeout))

    async def _ended_within(self, timeout: Duration | None) -> Task:
        import asyncio

        limit_ms = None if timeout is None else duration_ms(timeout, "timeout")
        try:
            async with asyncio.timeout(None if limit_ms is None else limit_ms / 1000):
                return await self._ended(bounded=limit_ms is not None)
        except TimeoutError:
            raise await self._link.timed_out(self.task_id, limit_ms or 0) from None

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """What the function returned; `TaskFailed` or `TaskCancelled` if it ended otherwise."""
        task = await self._ended_within(timeout)
        if task.state is not State.SUCCEEDED:
            raise _failure(task_info(self._link, task))
        return self._decode(b"null" if task.result is None else self._link.opened(task, task.result))

    async def acancel(self, reason: str = "cancelled") -> bool:
        """True: it will not run (again). False: it is running and was told to stop. `Refused` if it has ended."""
        from holdfast.core import lifecycle

        verdict = await self._changed(lifecycle.cancel(self.task_id, reason), "it has ended and cannot be cancelled")
        return verdict.state is not State.CLAIMED

    async def aprioritize(self, priority: int) -> None:
        """Gives the waiting task another priority; `Refused` if a worker has it, or it has ended."""
        from holdfast.core import lifecycle

        change = lifecycle.prioritize(self.task_id, check_priority(priority))
        await self._changed(change, "only a task that waits has a place in its queue")

    async def aprogress(self) -> Progress:
        """The last progress that the run reported, empty if none; a succeeded task has no progress but its log."""
        return shown_progress(await self._record())

    async def alog(self) -> tuple[LogLine, ...]:
        """The latest log lines of the task, the first one first."""
        return kept_log(await self._record())

    async def awhy(self) -> str:
        """Why the task is in its current state, in words."""
        return await self._link.why(self.task_id)

    # -- the same for sync callers --------------------------------------------------------------------------

    def status(self) -> TaskInfo:
        """All that the store knows of the task now; `UnknownTask` if it knows nothing."""
        return self._link.run(self.astatus())

    def history(self) -> tuple[Attempt, ...]:
        """The runs of the task that have ended, the first one first."""
        return self._link.run(self.ahistory())

    def wait(self, timeout: Duration | None = None) -> TaskInfo:
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
        """The last progress that the run reported, empty if none; a succeeded task has no progress but its log."""
        return self._link.run(self.aprogress())

    def log(self) -> tuple[LogLine, ...]:
        """The latest log lines of the task, the first one first."""
        return self._link.run(self.alog())

    def why(self) -> str:
        """Why the task is in its current state, in words."""
        return self._link.run(self.awhy())

    # -- habits ---------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # or a checker would let it be awaited, and believe in every attribute

        def __await__(self) -> Any:
            raise UsageError(
                f"task {self.task_id} is enqueued, and its handle cannot be awaited: write `await task.aenqueue(...)` "
                "instead of `await task.enqueue(...)`, and `await handle.aresult()` for the result"
            )

        def __getattr__(self, name: str) -> Any:
            raise habit(HANDLE_HABITS, "TaskHandle", name)

    # -- a value --------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"

    def __eq__(self, other: object) -> bool:
        return self.task_id == other.task_id if isinstance(other, TaskHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.task_id)

    async def _changed(self, change: Change, otherwise: str) -> Verdict:
        (verdict,) = await self._link.store().apply([change])
        if verdict.applied:
            return verdict
        if verdict.state is None:
            raise unknown_task(self.task_id)
        raise Refused(f"task {self.task_id} is {verdict.state}: {otherwise}")

    # -- the one place that polls ---------------------------------------------------------------------------

    async def _ended(self, *, bounded: bool) -> Task:
        if self._known_end is not None:
            return self._known_end
        import asyncio

        pause = _FIRST_POLL_SECONDS
        waited = 0.0
        while (task := await self._record()).state not in FINAL_STATES:
            self._link.check_waiting(f"task {task.task_id} ({task.type}) is {task.state}", bounded=bounded)
            await asyncio.sleep(pause)
            waited += pause
            if waited >= _WARN_AFTER_SECONDS:
                waited = 0.0
                await self._link.warn_if_hindered(task)
            pause = min(pause * _POLL_GROWTH, _LONGEST_POLL_SECONDS)
        return task


def unknown_task(task_id: str) -> UnknownTask:
    """The error about an id that the store does not know."""
    return UnknownTask(f"task {task_id} is not in this store: never enqueued, or pruned after it ended")


def _failure(task: TaskInfo) -> TaskFailed:
    name = f"task {task.task_id} ({task.type})"
    if task.state is State.CANCELLED:
        return TaskCancelled(f"{name} was cancelled: {task.reason or 'no reason given'}", task=task)
    failure = task.error
    last = f"{failure.name}: {failure.message}" if failure else "no error recorded"
    attempts = "1 attempt" if task.attempt == 1 else f"{task.attempt} attempts"
    return TaskFailed(
        f"{name} is {task.state} ({task.reason or 'failed'}) after {attempts}: {last}",
        error=failure.type if failure else "",
        message=failure.message if failure else "",
        traceback=failure.traceback if failure else "",
        task=task,
    )
