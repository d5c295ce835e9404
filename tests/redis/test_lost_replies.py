"""A script that ran and whose reply was lost is sent again by the link: nothing may happen twice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.clock import SystemClock
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.partitions import first_map
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import NewTask, State
from holdfast.stores import documents
from holdfast.stores.contract import Reserve
from holdfast.stores.redis.connection import Word
from holdfast.stores.redis.link import Link
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.redis.urls import parse_redis_url
from tests.servers.redis_server import RedisServer

IDS = IdSource(SystemClock().now_ms, os.urandom)


class LosesEveryFirstReply(Link):
    """Makes every call twice, as if the first reply had been lost."""

    async def calls(
        self, script: Script, key: str, many_args: Sequence[Sequence[Word]], *, safe: bool = False
    ) -> list[Any]:
        await super().calls(script, key, many_args, safe=safe)
        return await super().calls(script, key, many_args, safe=safe)


def a_store(server: RedisServer) -> RedisStore:
    return RedisStore(LosesEveryFirstReply(parse_redis_url(server.url)), prefix="hf", clock=SystemClock())


@pytest.mark.parametrize("fresh", [False, True])
def test_a_reserve_whose_reply_was_lost_claims_no_more_than_asked_for(redis_server: RedisServer, fresh: bool) -> None:
    async def scenario() -> None:
        store = a_store(redis_server)
        tasks = [NewTask(task_id=IDS.task_id(), type="t", queue="q", payload=b"{}") for _ in range(10)]
        await store.enqueue(tasks)
        request = Reserve(
            claim_id=IDS.claim_id(),
            worker_id="w",
            shares=[QueueShare("q", 3)],
            max_tasks=3,
            lease_ms=60_000,
            fresh=fresh,
        )
        assert len((await store.reserve(request)).tasks) == 3
        (counts,) = await store.counts()
        assert counts.states == {State.READY: 7, State.CLAIMED: 3}
        await store.close()

    asyncio.run(scenario())


def test_a_schedule_whose_reply_was_lost_fires_once(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = a_store(redis_server)
        first = Schedule(
            name="s", timing=Timing(every_ms=1_000), call=ScheduledCall(type="t", queue="q"), next_at_ms=1_000
        )
        assert await documents.put_schedule(store, "s", first, 0)
        occurrence = NewTask(task_id=IDS.task_id(), type="t", queue="q", payload=b"{}")
        assert await documents.put_schedule(store, "s", replace(first, next_at_ms=2_000, version=2), 1, [occurrence])
        [counts] = await store.counts()
        assert counts.states == {State.READY: 1}
        assert await documents.put_schedule(store, "s", None, 2)
        assert await documents.schedule(store, "s") is None
        await store.close()

    asyncio.run(scenario())


def test_a_map_whose_reply_was_lost_is_the_new_one(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = a_store(redis_server)
        new = first_map(("redis://one", "redis://two"))
        assert await documents.put_partition_map(store, new) == new == await documents.partition_map(store)
        await store.close()

    asyncio.run(scenario())
