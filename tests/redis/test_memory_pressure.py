"""A server without room: a batch is recorded whole or not at all, and old results make room for new tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.core.partitions import PartitionMap
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State
from holdfast.errors import StaleMap, StoreFull
from holdfast.stores.contract import MAX_BATCH, Retention, Store
from holdfast.stores.documents import put_partition_map
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.harness import StoreHarness
from holdfast.testing.kit.kit import Kit, ack
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


def test_results_that_were_to_stay_long_go_too(harness: StoreHarness, any_server: RedisServer) -> None:
    async def scenario() -> None:
        kit = Kit(harness, await harness.open())
        await kit.begin()
        long, spared = (RunPolicy(result_ttl_ms=30 * 86_400_000, dead_letter=dead) for dead in (True, False))
        await kit.apply(ack(await kit.claim(policy=long)))
        failed = await kit.dead_letter(policy=spared)
        kit.clock.advance(MINUTE_MS + 1)
        assert await kit.prune(Retention()) == 0
        any_server.command("CONFIG", "SET", "maxmemory", int(any_server.info("memory")["used_memory"]) + 50_000)
        assert await kit.prune(Retention()) == 1
        assert await kit.state(failed) is State.FAILED
        await kit.close()

    asyncio.run(scenario())


def test_a_batch_without_room_is_recorded_in_no_part(harness: StoreHarness, any_server: RedisServer) -> None:
    async def scenario() -> None:
        kit = Kit(harness, await harness.open())
        await kit.begin()
        await kit.enqueue()
        any_server.command("CONFIG", "SET", "maxmemory", int(any_server.info("memory")["used_memory"]) + 1_500_000)
        batch = [kit.new_task(payload=b'{"text":"%s"}' % (b"." * 2_000)) for _ in range(MAX_BATCH)]
        with pytest.raises(StoreFull, match="memory is full"):
            await kit.store.enqueue(batch)
        assert (await kit.counts()).states == {State.READY: 1}
        assert all(answer.created for answer in await kit.store.enqueue(batch[:300]))
        any_server.command("CONFIG", "SET", "maxmemory", 1)
        # The reply may have been lost: what is there needs no room.
        for number in (1, 200, 300):
            assert not any(answer.created for answer in await kit.store.enqueue(batch[:number]))
        with pytest.raises(StoreFull, match="memory is full"):
            await kit.store.enqueue(batch[299:301])
        with pytest.raises(StoreFull, match="memory is full"):
            await kit.store.enqueue(batch[:301])
        assert (await kit.counts()).states == {State.READY: 301}
        await kit.close()

    asyncio.run(scenario())


def test_a_batch_of_an_old_map_is_recorded_in_no_part(harness: StoreHarness) -> None:
    async def scenario() -> None:
        kit = Kit(harness, await harness.open())
        await kit.begin()
        await put_partition_map(kit.store, PartitionMap(version=1))
        with pytest.raises(StaleMap):
            await kit.store.enqueue([kit.new_task() for _ in range(MAX_BATCH)])
        assert await kit.store.counts() == []
        await kit.close()

    asyncio.run(scenario())
