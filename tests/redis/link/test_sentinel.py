"""Behind Sentinels, calls find the master again after it was killed, frozen or replaced; nothing safe is lost."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.stores.redis.topology import SentinelRoute
from holdfast.stores.redis.urls import parse_redis_url
from tests.redis.link.helpers import KEY, RECORD, ids_in, linked, recording
from tests.servers.callers import in_thread, until
from tests.servers.flavours import Flavour
from tests.servers.redis_server import RedisServer
from tests.servers.sentinels import Sentinels
from tests.servers.shared import shared_sentinels
from tests.support import eventually

pytestmark = pytest.mark.alone


@pytest.fixture
def sentinels(flavour: Flavour) -> Sentinels:
    """A master, a replica and three Sentinels, of Redis and of Valkey in turn."""
    found = shared_sentinels(flavour).heal()
    found.master.flush()
    return found


def test_killed_master_is_replaced_under_calls(sentinels: Sentinels) -> None:
    async def scenario() -> None:
        async with linked(sentinels.url, durability="strict", deadline="60s") as link:
            callers = recording(link)
            await callers.more()
            old: RedisServer = await in_thread(sentinels.kill_master)
            await in_thread(old.start)  # As the replica without which nothing is safe.
            await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged

    asyncio.run(scenario())


@pytest.mark.long
def test_failover_by_hand_under_calls(sentinels: Sentinels) -> None:
    async def scenario() -> None:
        async with linked(sentinels.url, durability="replicated", deadline="60s") as link:
            callers = recording(link)
            await callers.more()
            await in_thread(sentinels.failover)
            await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged

    asyncio.run(scenario())


def test_frozen_master_is_left_behind(redis_sentinels: Sentinels) -> None:
    async def scenario() -> None:
        async with linked(redis_sentinels.url, durability="replicated", deadline="60s") as link:
            await link.call(RECORD, KEY, ["before", "1"])
            old = redis_sentinels.master
            old.freeze()
            call = asyncio.create_task(link.call(RECORD, KEY, ["after", "1"], safe=True))
            await until(lambda: redis_sentinels.master is not old, "another master")
            # It may still take itself for the master, and take the call; but no replica confirms that.
            old.thaw()
            await call
            assert redis_sentinels.master.command("HGET", KEY, "after") == "1"

    asyncio.run(scenario())


@pytest.mark.long
def test_some_sentinels_may_be_away(redis_sentinels: Sentinels) -> None:
    async def scenario() -> None:
        redis_sentinels.sentinels[0].kill()
        redis_sentinels.sentinels[1].freeze()
        async with linked(redis_sentinels.url) as link:
            assert await link.call(RECORD, KEY, ["a", "1"]) == b"created"

    asyncio.run(scenario())


def test_replicas_that_most_sentinels_call_down_are_not_waited_for() -> None:
    async def promotable(sentinels: Sentinels) -> int:
        route = SentinelRoute(parse_redis_url(sentinels.url))
        return await route.promotable(await route.find(KEY))

    with Sentinels(replicas=2) as sentinels:
        assert asyncio.run(promotable(sentinels)) == 2
        sentinels.data.replicas[0].kill()
        eventually(lambda: asyncio.run(promotable(sentinels)) == 1, 30.0, "the dead one does not count")
        # With one Sentinel left, nobody knows what the others think: all that might be promoted count.
        for sentinel in sentinels.sentinels[:2]:
            sentinel.freeze()
        assert asyncio.run(promotable(sentinels)) == 2


def test_password_of_the_servers_when_the_sentinels_have_none() -> None:
    async def scenario(url: str) -> None:
        async with linked(url) as link:
            assert await link.call(RECORD, KEY, ["a", "1"]) == b"created"

    with Sentinels(password="hush") as sentinels:
        asyncio.run(scenario(sentinels.url))
