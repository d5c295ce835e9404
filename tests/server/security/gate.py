"""A real server that asks for tokens, and tokens for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.admin import tokens
from holdfast.clock import Clock, SystemClock
from holdfast.server.auth import MAX_WAITING, TokenGuard
from holdfast.server.server import Server, ServerSettings
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from tests.server.setting import Client, RunningServer

T = TypeVar("T")

ADMIN = "admin"


class Gate:
    """A server over a store of its own."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.port = server.port
        self._clients: list[Client] = []

    @property
    def store(self) -> Store:
        """For the event loop of the server only."""
        return self.server.service.store

    def run(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """The answer of the store itself."""

        async def asked() -> T:
            return await call(self.store)

        made: Coroutine[Any, Any, T] = asked()
        return asyncio.run_coroutine_threadsafe(made, self.server.loop).result(20)

    def token(self, *scopes: str, **options: Any) -> str:
        """A new token."""
        now_ms = SystemClock().now_ms()
        return str(self.run(lambda store: tokens.create(store, scopes, now_ms=now_ms, **options)))

    def revoke(self, token: str) -> None:
        """Takes a token away."""
        self.run(lambda store: tokens.revoke(store, token))

    def client(self, *scopes: str, **options: Any) -> Client:
        """A client with a new token."""
        return self.with_token(self.token(*scopes, **options))

    def with_token(self, token: str | None) -> Client:
        """A client with this token, or with none."""
        client = Client(self.port, token)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()


@contextmanager
def open_gate(
    directory: Path,
    settings: ServerSettings | None = None,
    *,
    max_waiting: int = MAX_WAITING,
    clock: Clock | None = None,
) -> Iterator[Gate]:
    """A gate that is open while the block runs."""

    def make_service() -> Server:
        store = open_store(f"sqlite:///{directory}/tasks.db")
        guard = TokenGuard(store, clock=clock, max_waiting=max_waiting)
        return Server(store, guard, settings or ServerSettings(maintenance=False))

    server = RunningServer(make_service)
    server.start()
    gate = Gate(server)
    try:
        yield gate
    finally:
        gate.close()
        server.stop()
