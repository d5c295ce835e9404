"""On a cluster, calls follow their slot: over kills, failovers and migrations; nothing that was safe is lost."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import StoreUnavailable
from tests.redis.link.helpers import KEY, RECORD, RECORD_BELOW, RECORD_BESIDE, ids_in, linked, recording
from tests.servers.callers import in_thread, one_line
from tests.servers.cluster import RedisCluster
from tests.servers.flavours import Flavour
from tests.servers.redis_server import RedisServer
from tests.servers.shared import shared_cluster

pytestmark = pytest.mark.alone

KEYS = [f"{{hf:{number}}}" for number in range(12)]


@pytest.fixture
def cluster(flavour: Flavour) -> RedisCluster:
    """Three masters with a replica each, of Redis and of Valkey in turn."""
    found = shared_cluster(flavour).heal()
    found.flush()
    return found


def test_each_key_goes_to_its_master(cluster: RedisCluster) -> None:
    async def scenario() -> None:
        async with linked(cluster.url, durability="strict") as link:
            for key in KEYS:
                assert await link.call(RECORD, key, ["a", "1"], safe=True) == b"created"
                assert cluster.master_of(key).command("HGET", key, "a") == "1"
            assert len({cluster.master_of(key).port for key in KEYS}) == 3
            assert [address.port for address in await link.masters()] == sorted(m.port for m in cluster.masters())
            cluster.master_of(KEY).command("RPUSH", f"{KEY}:bell", "1")
            assert await link.pop([f"{KEY}:bell"], 20_000) is True

    asyncio.run(scenario())


def test_killed_master_is_replaced_under_calls(cluster: RedisCluster) -> None:
    async def scenario() -> None:
        async with linked(cluster.url, durability="strict", deadline="60s") as link:
            callers = recording(link)
            await callers.more()
            old: RedisServer = await in_thread(cluster.kill_master, KEY)
            await in_thread(old.start)  # As the replica without which nothing is safe.
            await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged

    asyncio.run(scenario())


@pytest.mark.long
def test_failover_by_hand_under_calls(cluster: RedisCluster) -> None:
    async def scenario() -> None:
        async with linked(cluster.url, durability="strict", deadline="60s") as link:
            callers = recording(link)
            for _ in range(2):
                await callers.more()
                await in_thread(cluster.failover, KEY)
            await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged

    asyncio.run(scenario())


def test_frozen_master_is_left_behind(redis_cluster: RedisCluster) -> None:
    async def scenario() -> None:
        async with linked(redis_cluster.url, durability="replicated", deadline="60s") as link:
            await link.call(RECORD, KEY, ["before", "1"])
            old = redis_cluster.master_of(KEY)
            old.freeze()
            call = asyncio.create_task(link.call(RECORD, KEY, ["after", "1"], safe=True))
            new = await in_thread(redis_cluster.wait_for_another_master, KEY, old)
            # It may still take itself for the master, and take the call; but no replica confirms that.
            old.thaw()
            await call
            assert new.command("HGET", KEY, "after") == "1"

    asyncio.run(scenario())


def test_slot_moves_to_and_fro_under_calls(cluster: RedisCluster) -> None:
    async def scenario() -> None:
        async with linked(cluster.url, durability="strict", deadline="60s") as link:
            callers = recording(link)
            for _ in range(4):
                await callers.more()
                await in_thread(_migrate_elsewhere, cluster, KEY)
            await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) == acknowledged

    asyncio.run(scenario())


@pytest.mark.long
def test_half_moved_slot_is_waited_for(cluster: RedisCluster) -> None:
    """While keys are on two servers, a script must see neither half: it would take the other half for missing."""

    async def scenario() -> None:
        async with linked(cluster.url, deadline="300ms") as hasty, linked(cluster.url, deadline="60s") as patient:
            for number in range(20):
                assert await hasty.call(RECORD_BESIDE, KEY, [f"{number}"]) == 0
            source, target = cluster.master_of(KEY), _another(cluster, KEY)
            cluster.begin_migration(KEY, target)
            assert cluster.move_keys(KEY, source, target, 7) == 7
            calls = [asyncio.create_task(patient.call(RECORD_BESIDE, KEY, [f"{number}"])) for number in range(25)]
            for number in (20, 21):
                with pytest.raises(StoreUnavailable) as caught:
                    await hasty.call(RECORD_BESIDE, KEY, [f"{number}"])
                assert "a slot is being moved" in one_line(caught.value)
            await in_thread(_finish, cluster, KEY, source, target)
            assert await asyncio.gather(*calls) == [1] * 20 + [0] * 5
            assert await ids_in(patient) == {f"{number}" for number in range(25)}

    asyncio.run(scenario())


def test_script_whose_named_key_never_exists_is_refused_whole_while_its_slot_moves(cluster: RedisCluster) -> None:
    """It writes before it reads, and still no write of it is ever done by half: it is stopped at the door."""

    async def scenario() -> None:
        async with linked(cluster.url, deadline="300ms") as hasty, linked(cluster.url, deadline="60s") as patient:
            for number in range(20):
                assert await hasty.call(RECORD_BELOW, KEY, [f"{number}"]) == 1
            source, target = cluster.master_of(KEY), _another(cluster, KEY)
            cluster.begin_migration(KEY, target)
            for _ in range(3):
                cluster.move_keys(KEY, source, target, 5)
                with pytest.raises(StoreUnavailable, match="a slot is being moved"):
                    await hasty.call(RECORD_BELOW, KEY, ["new"])
            calls = [asyncio.create_task(patient.call(RECORD_BELOW, KEY, [f"{number}"])) for number in range(25)]
            await in_thread(_finish, cluster, KEY, source, target)
            assert await asyncio.gather(*calls) == [0] * 20 + [1] * 5
            assert "new" not in target.command("HKEYS", f"{KEY}/all")

    asyncio.run(scenario())


def test_part_of_the_cluster_is_enough_to_find_the_rest(redis_cluster: RedisCluster) -> None:
    async def scenario() -> None:
        one = redis_cluster.masters()[0]
        async with linked(f"redis+cluster://127.0.0.1:1,127.0.0.1:{one.port}") as link:
            for key in KEYS:
                assert await link.call(RECORD, key, ["a", "1"]) == b"created"

    asyncio.run(scenario())


@pytest.mark.long
def test_lost_master_does_not_stop_the_others(redis_cluster: RedisCluster) -> None:
    async def scenario() -> None:
        lost = redis_cluster.master_of(KEY)
        others = [key for key in KEYS if redis_cluster.master_of(key) is not lost]
        replicas = redis_cluster.replicas_of(lost)
        async with linked(redis_cluster.url, deadline="300ms") as link:
            for server in [*replicas, lost]:
                server.kill()
            with pytest.raises(StoreUnavailable):
                await link.call(RECORD, KEY, ["a", "1"])
            for key in others:
                assert await link.call(RECORD, key, ["a", "1"]) == b"created"

    asyncio.run(scenario())


def _another(cluster: RedisCluster, key: str) -> RedisServer:
    owner = cluster.master_of(key)
    return next(server for server in cluster.masters() if server is not owner)


def _migrate_elsewhere(cluster: RedisCluster, key: str) -> None:
    source, target = cluster.master_of(key), _another(cluster, key)
    cluster.begin_migration(key, target)
    _finish(cluster, key, source, target)


def _finish(cluster: RedisCluster, key: str, source: RedisServer, target: RedisServer) -> None:
    while cluster.move_keys(key, source, target):
        pass
    cluster.finish_migration(key, source, target)
