"""The kit's hold on a store behind a server: one real server for all cases, and a server for each store."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import uvicorn

from holdfast.server.app import make_app
from holdfast.server.auth import Guard
from holdfast.server.process import listen
from holdfast.server.server import Server, ServerSettings
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.kit.harness import StoreHarness
from tests.server.setting import OpenDoor

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class SharedServer:
    """A server in a thread, with an event loop of its own; each server is mounted under a name of its own."""

    def __init__(self) -> None:
        self._listener = listen("127.0.0.1", 0)
        self._apps: dict[str, App] = {}
        self._names = (f"/server-{number}" for number in count(1))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, daemon=True).start()

    def mount(self, app: App) -> str:
        """The URL under which the app answers from now on."""
        name = next(self._names)
        self._apps[name] = app
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}{name}"

    async def run(self, step: Awaitable[Any]) -> Any:
        """Awaits it in the event loop of the server."""

        async def run() -> Any:
            return await step

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = f"/{scope['path'].split('/')[1]}"
        await self._apps[name]({**scope, "root_path": name}, receive, send)

    def _serve(self) -> None:
        config = uvicorn.Config(self, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=75)
        self._loop.run_until_complete(uvicorn.Server(config).serve([self._listener]))


@functools.cache
def shared_server() -> SharedServer:
    """Started by the first who needs it; it ends with the process."""
    return SharedServer()


class RemoteHarness:
    """Another harness, each of whose stores is behind a server."""

    def __init__(self, inner: StoreHarness, guard: Guard | None = None) -> None:
        self.clock = inner.clock
        self.persistent = inner.persistent
        self._inner = inner
        self._guard = guard or OpenDoor()
        self._server = shared_server()
        self._servers = AsyncExitStack()

    async def open(self) -> Store:
        """A store behind a new server."""
        return open_store(await self.url())

    async def url(self) -> str:
        """Of a new server."""
        server = Server(await self._inner.open(), self._guard, ServerSettings(maintenance=False), clock=self.clock)
        await self._server.run(self._servers.enter_async_context(server.opened()))
        return self._server.mount(make_app(server))

    async def destroy(self) -> None:
        """Closes the servers, and deletes the inner harness's data."""
        await self._server.run(self._servers.aclose())
        await self._inner.destroy()
