"""After a failover or a restart: claims get their grace, and a server that lost its tail is told what it lost."""

from __future__ import annotations

import asyncio
import os

import pytest

from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.task import Claimed, Failure, NewTask, State
from holdfast.stores.contract import Reserve, Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from tests.servers.redis_server import RedisServer

pytestmark = pytest.mark.alone

IDS = IdSource(SystemClock().now_ms, os.urandom)
LEASE_MS = 2_000
DAY_MS = 86_400_000


def a_task() -> NewTask:
    return NewTask(task_id=IDS.task_id(), type="work", queue="default", payload=b"{}")


async def claim(store: Store, lease_ms: int = LEASE_MS) -> Claimed:
    shares = [QueueShare("default", 1)]
    request = Reserve(claim_id=IDS.claim_id(), worker_id="w", shares=shares, max_tasks=1, lease_ms=lease_ms)
    (task,) = (await store.reserve(request)).tasks
    return task


def test_claims_get_one_lease_of_grace_after_a_restart(durable_server: RedisServer) -> None:
    async def scenario() -> None:
        clock = SteppedClock()
        store = open_store(durable_server.url, clock=clock)
        await store.enqueue([a_task()])
        task = await claim(store)
        assert (await store.expired()).claims == []
        await asyncio.to_thread(durable_server.kill)
        clock.advance(LEASE_MS + 1)  # Nobody could renew meanwhile.
        await asyncio.to_thread(durable_server.start)
        assert (await store.expired()).claims == []
        clock.advance(LEASE_MS - 1)
        assert (await store.expired()).claims == []
        clock.advance(1)
        assert [claim.task_id for claim in (await store.expired()).claims] == [task.task_id]
        await store.close()

    asyncio.run(scenario())


def test_a_long_lease_delays_nobody_else_after_a_restart(durable_server: RedisServer) -> None:
    async def scenario() -> None:
        clock = SteppedClock()
        store = open_store(durable_server.url, clock=clock)
        await store.enqueue([a_task() for _ in range(4)])
        settled, held, usual, short = [await claim(store, ms) for ms in (DAY_MS, DAY_MS, 30_000, LEASE_MS)]
        await store.apply([lifecycle.ack(settled.task_id, settled.token)])
        assert (await store.expired()).claims == []
        await asyncio.to_thread(durable_server.kill)
        clock.advance(DAY_MS + 1)
        await asyncio.to_thread(durable_server.start)
        expected: dict[int, list[str]] = {
            0: [],
            LEASE_MS: [short.task_id],
            30_000: [usual.task_id],
            DAY_MS: [held.task_id],
        }
        began_ms = clock.now_ms()
        for after_ms, task_ids in expected.items():
            clock.advance(began_ms + after_ms - clock.now_ms())
            expired = (await store.expired(limit=1)).claims
            assert [each.task_id for each in expired] == task_ids
            await store.apply([lifecycle.release(each.task_id, each.token) for each in expired])
        await store.close()

    asyncio.run(scenario())


def test_a_claim_renewed_within_the_grace_is_kept(durable_server: RedisServer) -> None:
    async def scenario() -> None:
        clock = SteppedClock()
        store = open_store(durable_server.url, clock=clock)
        await store.enqueue([a_task()])
        task = await claim(store)
        await store.expired()
        await asyncio.to_thread(durable_server.kill)
        clock.advance(LEASE_MS * 3)
        await asyncio.to_thread(durable_server.start)
        await store.expired()
        (verdict,) = await store.apply([lifecycle.ack(task.task_id, task.token)])
        assert verdict.applied
        await store.close()

    asyncio.run(scenario())


def test_what_a_server_lost_is_sent_again(redis_server: RedisServer) -> None:
    """The fast profile keeps nothing: a restart loses everything that it acknowledged."""

    async def scenario() -> None:
        store = open_store(redis_server.url)
        before = [a_task() for _ in range(300)]
        await store.enqueue(before)
        await asyncio.to_thread(redis_server.kill)
        await asyncio.to_thread(redis_server.start)
        after = a_task()
        await store.enqueue([after])
        found = await store.get([task.task_id for task in [*before, after]])
        assert [task.state for task in found if task] == [State.READY] * 301
        await store.close()

    asyncio.run(scenario())


def test_a_caller_that_only_asks_notices_too(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(redis_server.url)
        task = a_task()
        await store.enqueue([task])
        await asyncio.to_thread(redis_server.kill)
        await asyncio.to_thread(redis_server.start)
        (found,) = await store.get([task.task_id])
        assert found is not None
        await store.close()

    asyncio.run(scenario())


def test_what_was_discarded_is_not_sent_again(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(redis_server.url)
        task = a_task()
        await store.enqueue([task])
        claimed = await claim(store)
        failure = Failure("x.E", "boom")
        await store.apply([lifecycle.Change(lifecycle.Event.BURY, claimed.task_id, claimed.token, error=failure)])
        await store.apply([lifecycle.discard(claimed.task_id, "not needed")])
        await store.enqueue([a_task()])
        assert await store.get([task.task_id]) == [None]
        await store.close()

    asyncio.run(scenario())


def test_calls_at_the_same_time_are_no_loss(redis_server: RedisServer) -> None:
    async def scenario() -> int:
        store = open_store(redis_server.url)
        await asyncio.gather(*(store.enqueue([a_task() for _ in range(3)]) for _ in range(100)))
        (counts,) = await store.counts()
        await store.close()
        return counts.states[State.READY]

    assert asyncio.run(scenario()) == 300
