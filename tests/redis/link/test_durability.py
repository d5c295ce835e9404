"""A safe call returns when the replicas have it, or says that it does not know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from holdfast.errors import DurabilityUnknown, StoreUnavailable
from tests.redis.link.helpers import KEY, READ, RECORD, linked, recording
from tests.servers.callers import one_line
from tests.servers.flavours import FAST
from tests.servers.proxy import FaultProxy, LineFaults
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas
from tests.support import eventually


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[Replicas]:
    with Replicas(2, profile=FAST) as servers:
        yield servers


@pytest.fixture
def servers(shared_pair: Replicas) -> Replicas:
    """A master with two replicas that are in step."""
    shared_pair.heal()
    shared_pair.master.flush()
    with shared_pair.master.client() as client:
        client.set("in", "step")
        eventually(lambda: client.wait(2, 100) == 2, what="both replicas are in step")
    return shared_pair


def test_local_does_not_ask_replicas(servers: Replicas) -> None:
    async def scenario() -> None:
        for replica in servers.replicas:
            replica.freeze()
        async with linked(servers.url, deadline="500ms") as link:
            assert await link.call(RECORD, KEY, ["a", "1"], safe=True) == b"created"

    asyncio.run(scenario())


def test_replicated_needs_one_of_two(servers: Replicas) -> None:
    async def scenario() -> None:
        servers.replicas[0].freeze()
        async with linked(servers.url, durability="replicated", deadline="5s") as link:
            assert await link.call(RECORD, KEY, ["a", "1"], safe=True) == b"created"
            assert servers.replicas[1].command("HGET", KEY, "a") == "1"

    asyncio.run(scenario())


@pytest.mark.parametrize(("level", "frozen", "says"), [("replicated", 2, "only 0 of 1"), ("strict", 1, "only 1 of 2")])
def test_too_few_replicas_is_not_known_and_not_twice(servers: Replicas, level: str, frozen: int, says: str) -> None:
    async def scenario() -> None:
        async with linked(servers.url, durability=level, deadline="1s", wait_ms=50) as link:
            await link.call(RECORD, KEY, ["before", "1"], safe=True)
            for replica in servers.replicas[:frozen]:
                replica.freeze()
            with pytest.raises(DurabilityUnknown) as caught:
                await link.call(RECORD, KEY, ["a", "1"], safe=True)
            assert caught.value.retryable
            assert f"{says} replicas confirmed it" in one_line(caught.value)
            # It was recorded all the same, and what need not be safe goes on.
            assert await link.call(READ, KEY, ["a"]) == b"1"
            for replica in servers.replicas[:frozen]:
                replica.thaw()
            assert await link.call(RECORD, KEY, ["a", "2"], safe=True) == b"known"
            assert [replica.command("HGET", KEY, "a") for replica in servers.replicas] == ["1", "1"]

    asyncio.run(scenario())


def test_replica_that_comes_back_in_time_is_waited_for(servers: Replicas) -> None:
    async def scenario() -> None:
        async with linked(servers.url, durability="strict", deadline="30s", wait_ms=50) as link:
            await link.call(RECORD, KEY, ["before", "1"], safe=True)
            servers.replicas[0].freeze()
            servers.master.command("CONFIG", "RESETSTAT")
            call = asyncio.create_task(link.call(RECORD, KEY, ["a", "1"], safe=True))
            await asyncio.to_thread(eventually, lambda: _waits(servers.master) >= 3, what="it has waited in vain twice")
            assert not call.done()
            servers.replicas[0].thaw()
            # Sent again until the replica had it, and the last time it was known already.
            assert await call == b"known"

    asyncio.run(scenario())


def _waits(server: RedisServer) -> int:
    """How many times the server was asked to wait for its replicas."""
    found = re.match(r"calls=(\d+)", server.info("commandstats").get("cmdstat_wait", ""))
    return int(found[1]) if found else 0


@pytest.mark.parametrize("level", ["replicated", "strict"])
def test_without_any_replica_nothing_is_safe(redis_server: RedisServer, level: str) -> None:
    async def scenario() -> None:
        async with linked(redis_server.url, durability=level, deadline="300ms", wait_ms=20) as link:
            with pytest.raises(DurabilityUnknown, match="only 0 of 1 replicas"):
                await link.call(RECORD, KEY, ["a", "1"], safe=True)
            assert await link.call(RECORD, KEY, ["b", "1"]) == b"created"

    asyncio.run(scenario())


def test_forgotten_script_is_as_safe(servers: Replicas) -> None:
    async def scenario() -> None:
        async with linked(servers.url, durability="strict") as link:
            for number in range(5):
                servers.master.command("SCRIPT", "FLUSH")
                assert await link.call(RECORD, KEY, [f"{number}", "1"], safe=True) == b"created"
                for replica in servers.replicas:
                    assert replica.command("HGET", KEY, f"{number}") == "1"

    asyncio.run(scenario())


def test_confirmation_that_is_lost_is_asked_for_again(servers: Replicas) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with linked(url, durability="strict") as link:
            callers = recording(link)
            await callers.more(100)
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            for replica in servers.replicas:
                assert acknowledged <= set(replica.command("HKEYS", KEY))
        assert line.struck.dropped > 10

    faults = LineFaults(drop_every=5, commands=frozenset({"WAIT"}))
    with FaultProxy(servers.master.address, faults=faults) as line:
        asyncio.run(scenario(line.url_for(servers.url), line))


def test_unknown_durability_is_an_outage_to_callers() -> None:
    assert issubclass(DurabilityUnknown, StoreUnavailable)
