"""Holdfast in services of FastAPI and Starlette: the HTTP API under a path of theirs, and tasks from their routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.app import Holdfast
from holdfast.contrib.missing import needs
from holdfast.contrib.signals import told_of_the_end
from holdfast.errors import BadOption, UnknownTask, UsageError
from holdfast.producer.task_info import TaskInfo
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store, redacted

with needs("holdfast.contrib.fastapi", "starlette uvicorn prometheus-client"):
    from starlette.exceptions import HTTPException
    from starlette.types import ASGIApp, Receive, Scope, Send

    from holdfast.server.app import make_app
    from holdfast.server.auth import Guard, TokenGuard
    from holdfast.server.server import Server, ServerSettings

if TYPE_CHECKING:
    from holdfast.contrib.task_router import TaskRouter

__all__ = ["Lifespan", "TaskApi", "TaskRouter", "lifespans", "task_status"]

#: What Starlette and FastAPI take as `lifespan=`.
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


class TaskApi:
    """The HTTP API of a store, to be mounted: `service.mount("/tasks", api)`; every request needs a token.

    Nothing is opened before its lifespan begins, which the service has to be given: `FastAPI(lifespan=lifespans(api))`.
    """

    def __init__(
        self,
        source: Holdfast | str,
        *,
        guard: Callable[[Store], Guard] = TokenGuard,
        settings: ServerSettings | None = None,
    ) -> None:
        self._url = source if isinstance(source, str) else source.url
        self._guard = guard
        self._settings = settings or _settings_of(source)
        self._serving: ASGIApp | None = None

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Serves while the block runs; also runs maintenance, unless the settings say otherwise."""
        if self._serving is not None:
            raise BadOption("TaskApi: its lifespan has begun already; give it to one service, once")
        store = open_store(self._url)
        server = Server(store, self._guard(store), self._settings)
        async with server.opened():
            self._serving = make_app(server)
            try:
                with told_of_the_end(server.leave):
                    yield
            finally:
                self._serving = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if self._serving is None:
            raise UsageError(
                "TaskApi: it is not open; frameworks do not begin the lifespan of what is mounted, so write "
                "FastAPI(lifespan=lifespans(api))"
            )
        await self._serving(scope, receive, send)

    def __repr__(self) -> str:
        return f"TaskApi({redacted(self._url)!r})"


def lifespans(*parts: TaskApi | Holdfast | Lifespan) -> Lifespan:
    """One lifespan of several, begun in this order and ended in the other.

    A `TaskApi` is served, an app is closed at the end, and a lifespan of your own is run; what those yield is joined.
    """
    opened = [_as_lifespan(part) for part in parts]

    @asynccontextmanager
    async def lifespan(service: Any) -> AsyncIterator[dict[str, Any]]:
        state: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for each in opened:
                given: Mapping[str, Any] | None = await stack.enter_async_context(each(service))
                state.update(given or {})
            yield state

    return lifespan


def task_status(app: Holdfast) -> Callable[[str], Awaitable[TaskInfo]]:
    """A dependency for routes with `{task_id}` in their path: the task, or 404."""

    async def status(task_id: str) -> TaskInfo:
        try:
            return await app.handle(task_id).astatus()
        except UnknownTask:
            raise HTTPException(404, "there is no such task") from None

    return status


def _as_lifespan(part: TaskApi | Holdfast | Lifespan) -> Lifespan:
    if isinstance(part, TaskApi):
        return part.lifespan
    return _closing(part) if isinstance(part, Holdfast) else part


def _closing(app: Holdfast) -> Lifespan:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await app.aclose()

    return lifespan


def _settings_of(source: Holdfast | str) -> ServerSettings:
    if isinstance(source, str):
        return ServerSettings()
    return ServerSettings(policy=source.policy, max_payload_bytes=source.max_payload)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """`TaskRouter` needs FastAPI; the rest of this module is for Starlette too."""
        if name != "TaskRouter":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from holdfast.contrib.task_router import TaskRouter

        return TaskRouter
