"""Routes of FastAPI with which clients follow and cancel tasks: state, progress, result, error, and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from holdfast.app import Holdfast
from holdfast.contrib.missing import needs
from holdfast.core.task import State
from holdfast.errors import BadOption, Refused, UnknownTask
from holdfast.producer.task_info import TaskInfo

with needs("TaskRouter", "fastapi"):
    from fastapi import APIRouter, HTTPException
    from fastapi.params import Depends
    from fastapi.responses import StreamingResponse
    from pydantic import BaseModel

#: A stream looks at its task this often at first, and less often while nothing changes.
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 1.0
_PAUSE_GROWTH: Final = 1.3
#: Interval of comments that keep proxies from closing an idle stream.
_QUIET_SECONDS: Final = 15.0
#: A stream ends after this time; browsers reconnect by themselves after `_RECONNECT_MS`.
STREAM_SECONDS: Final = 300.0
_RECONNECT_MS: Final = 1_000
#: How many streams one router serves at once; more are refused with 503.
MAX_STREAMS: Final = 1_000


class ProgressBody(BaseModel):
    """The last progress that the task reported."""

    done: float | None = None
    total: float | None = None
    note: str | None = None


class ErrorBody(BaseModel):
    """The last error of the task: its class and what it said, without the traceback."""

    type: str
    message: str


class TaskBody(BaseModel):
    """What a client sees of a task; the names are those of the JSON form of a task."""

    task_id: str
    type: str
    state: State
    finished: bool
    created_at_ms: int
    finished_at_ms: int | None = None
    progress: ProgressBody | None = None
    result: Any = None
    error: ErrorBody | None = None


class CancelBody(BaseModel):
    """`cancelled` is false while a worker still runs the task, which was told to stop."""

    task_id: str
    cancelled: bool


class TaskRouter(APIRouter):
    """`GET /{task_id}`, `GET /{task_id}/events` and `POST /{task_id}/cancel`, for tasks of the types of an app.

    Who may call them is for your `dependencies` to decide: `dependencies=[Depends(signed_in)]`, or `[]` for every
    client that knows the id of a task. A dependency with a parameter `task_id` gets the id from the path.
    """

    def __init__(
        self, app: Holdfast, *, dependencies: Sequence[Depends], prefix: str = "/tasks", **options: Any
    ) -> None:
        if not isinstance(app, Holdfast):
            raise BadOption(f"TaskRouter takes an app, as in TaskRouter(app, dependencies=[...]), not {app!r}")
        super().__init__(prefix=prefix, dependencies=dependencies, **{"tags": ["tasks"], **options})
        self._app = app
        self._streams = 0
        self.add_api_route("/{task_id}", self._show, methods=["GET"], summary="Show a task")
        self.add_api_route(
            "/{task_id}/events",
            self._follow,
            methods=["GET"],
            summary="Follow a task: an event with its state whenever it changes, until it has ended",
            response_class=StreamingResponse,
        )
        self.add_api_route("/{task_id}/cancel", self._cancel, methods=["POST"], summary="Cancel a task")

    async def _show(self, task_id: str) -> TaskBody:
        return _body(await self._task(task_id))

    async def _cancel(self, task_id: str) -> CancelBody:
        await self._task(task_id)
        try:
            cancelled = await self._app.handle(task_id).acancel("cancelled by a client")
        except Refused as error:
            raise HTTPException(409, str(error)) from None
        return CancelBody(task_id=task_id, cancelled=cancelled)

    async def _follow(self, task_id: str) -> StreamingResponse:
        first = await self._task(task_id)
        if self._streams >= MAX_STREAMS:
            raise HTTPException(503, "too many event streams are open; ask again later", {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(first), media_type="text/event-stream", headers=headers)

    async def _task(self, task_id: str) -> TaskInfo:
        try:
            task = await self._app.handle(task_id).astatus()
        except UnknownTask:
            raise HTTPException(404, "there is no such task") from None
        if task.type not in self._app.task_types:
            raise HTTPException(404, "there is no such task")
        return task

    async def _events(self, task: TaskInfo) -> AsyncIterator[str]:
        """An event for each change, until the task or the time of the stream has ended."""
        self._streams += 1
        try:
            clock = asyncio.get_running_loop().time
            ends_at, quiet_since, pause = clock() + STREAM_SECONDS, clock(), _FIRST_PAUSE_SECONDS
            told = _body(task).model_dump_json()
            yield f"retry: {_RECONNECT_MS}\n\n{_event(told)}"
            while not task.is_finished and clock() < ends_at:
                await asyncio.sleep(pause)
                pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_SECONDS)
                try:
                    task = await self._app.handle(task.task_id).astatus()
                except UnknownTask:  # pruned meanwhile
                    return
                if (now := _body(task).model_dump_json()) != told:
                    told, quiet_since, pause = now, clock(), _FIRST_PAUSE_SECONDS
                    yield _event(told)
                elif clock() - quiet_since > _QUIET_SECONDS:
                    quiet_since = clock()
                    yield ": still waiting\n\n"
        finally:
            self._streams -= 1


def _event(data: str) -> str:
    return f"event: task\ndata: {data}\n\n"


def _body(task: TaskInfo) -> TaskBody:
    progress = task.progress
    error = None if task.state is State.SUCCEEDED else task.error
    has_progress = (progress.done, progress.total, progress.note) != (None, None, None)
    return TaskBody(
        task_id=task.task_id,
        type=task.type,
        state=task.state,
        finished=task.is_finished,
        created_at_ms=task.record.created_at_ms,
        finished_at_ms=task.record.finished_at_ms,
        progress=ProgressBody(done=progress.done, total=progress.total, note=progress.note) if has_progress else None,
        result=task.result,
        error=None
        if error is None or task.state is State.SUCCEEDED
        else ErrorBody(type=error.type, message=error.message),
    )
