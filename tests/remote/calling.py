"""How tests call a store behind a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from tests.remote.scripted import ScriptedServer

T = TypeVar("T")


def with_store(url: str, use: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_store(url)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def url_of(server: ScriptedServer, options: str = "") -> str:
    return f"http://hf_id_CANARY@127.0.0.1:{server.port}{options}"


def counting(store: Store) -> Awaitable[object]:
    return store.counts()
