"""The kit's hold on a shared server: data of its own, and nothing left behind."""

from __future__ import annotations

import asyncio
import secrets

from holdfast.core.ids import IdSource
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.task import NewTask
from holdfast.stores.contract import Store
from tests.servers.cluster import RedisCluster
from tests.servers.harness import RedisHarness, cluster_harness, server_harness
from tests.servers.redis_server import RedisServer


def new_task(harness: RedisHarness) -> NewTask:
    ids = IdSource(harness.clock.now_ms, secrets.token_bytes)
    return NewTask(task_id=ids.task_id(), type="a", queue="q", payload=b"{}", policy=DEFAULT_POLICY)


async def opened(harness: RedisHarness) -> Store:
    store = await harness.open()
    await store.migrate()
    return store


def test_two_harnesses_do_not_see_each_other(any_server: RedisServer) -> None:
    async def run() -> None:
        one, other = server_harness(any_server), server_harness(any_server)
        store, foreign = await opened(one), await opened(other)
        task = new_task(one)
        await store.enqueue([task])
        assert await foreign.get([task.task_id]) == [None]
        second = await opened(one)
        assert await second.get([task.task_id]) != [None]
        for each in (store, foreign, second):
            await each.close()
        await other.destroy()
        assert any_server.command("DBSIZE") > 0
        await one.destroy()
        assert any_server.command("DBSIZE") == 0

    asyncio.run(run())


def test_nothing_is_left_on_a_cluster(redis_cluster: RedisCluster) -> None:
    async def run() -> None:
        harness = cluster_harness(redis_cluster)
        store = await opened(harness)
        await store.enqueue([new_task(harness)])
        assert sum(master.command("DBSIZE") for master in redis_cluster.masters()) > 0
        await store.close()
        await harness.destroy()
        assert sum(master.command("DBSIZE") for master in redis_cluster.masters()) == 0

    asyncio.run(run())


def test_dead_server_is_started_for_the_next_harness(redis_server: RedisServer) -> None:
    redis_server.kill()
    server_harness(redis_server)
    assert redis_server.answers()
