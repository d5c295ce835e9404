"""On a server that is nearly full, old results make room for new tasks; without that need they stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.core.task import State
from holdfast.stores.contract import Retention, Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.harness import StoreHarness
from holdfast.testing.kit import Kit, ack
from tests.servers.redis_server import RedisServer

MINUTE_MS = 60_000


class Harness:
    """One server for all stores of a test."""

    persistent = True

    def __init__(self, url: str) -> None:
        self.clock = SteppedClock()
        self._url = url

    async def open(self) -> Store:
        return open_store(self._url, clock=self.clock)

    async def destroy(self) -> None:
        pass


@pytest.fixture
def harness(any_server: RedisServer) -> Iterator[StoreHarness]:
    yield Harness(any_server.url)
    any_server.command("CONFIG", "SET", "maxmemory", 0)


def _finish_and_prune(harness: StoreHarness, server: RedisServer, *, nearly_full: bool) -> tuple[int, set[State]]:
    """How many of a succeeded, a young and a dead task are pruned after a minute, and what is left."""

    async def scenario() -> tuple[int, set[State]]:
        kit = Kit(harness, await harness.open())
        await kit.begin()
        await kit.apply(ack(await kit.claim()))
        await kit.dead_letter()
        kit.clock.advance(MINUTE_MS + 1)
        await kit.apply(ack(await kit.claim()))
        if nearly_full:
            used = int(server.info("memory")["used_memory"])
            server.command("CONFIG", "SET", "maxmemory", used + used // 20)
        pruned = await kit.prune(Retention())
        counts = await kit.counts()
        await kit.close()
        return pruned, {state for state, number in counts.states.items() if number}

    return asyncio.run(scenario())


def test_old_results_go_when_the_server_is_nearly_full(harness: StoreHarness, any_server: RedisServer) -> None:
    pruned, left = _finish_and_prune(harness, any_server, nearly_full=True)
    assert pruned == 1
    assert left == {State.SUCCEEDED, State.DEAD_LETTERED}


def test_results_stay_while_there_is_room(harness: StoreHarness, any_server: RedisServer) -> None:
    pruned, _ = _finish_and_prune(harness, any_server, nearly_full=False)
    assert pruned == 0
