"""Long polls: called off, cut short, through an outage."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Store
from tests.remote.calling import url_of, with_store
from tests.remote.scripted import Peer, always, scripted, silent
from tests.support import eventually, free_port


def test_a_wait_that_is_called_off_takes_its_connection_with_it() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.asked()
        if peer.client_has_gone():
            gone.set()

    async def use(store: Store) -> None:
        waiting = asyncio.create_task(store.wait(["default"], 60_000))
        await asyncio.to_thread(eventually, lambda: server.requests)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(gone.wait, 10)

    with scripted(script) as server:
        with_store(url_of(server), use)
        assert server.requests[0].json == {"wakeups": ["default"], "timeout_ms": 20_000}


def test_a_wait_ends_with_its_store() -> None:
    async def use(store: Store) -> None:
        waiting = asyncio.create_task(store.wait(["default"], 60_000))
        await asyncio.to_thread(eventually, lambda: server.requests)
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await waiting

    with scripted(silent) as server:
        with_store(url_of(server), use)


def test_a_wait_through_an_outage_ends_with_its_time() -> None:
    assert with_store(f"http://127.0.0.1:{free_port()}", lambda store: store.wait(["default"], 100)) is False


def test_a_wait_that_comes_back_too_early_says_so() -> None:
    with scripted(always(b"false")) as server:
        assert with_store(url_of(server), lambda store: store.wait(["default"], 60_000)) is False
        assert len(server.requests) == 1
