"""Deadlines to start are kept only for as long as they can matter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.core import lifecycle
from holdfast.core.retry import RunPolicy
from holdfast.testing.kit.kit import KEEP_NOTHING, Kit, ack
from tests.redis.test_memory_pressure import Harness
from tests.servers.redis_server import RedisServer

SOON = RunPolicy(expires_ms=1_000)


def kept(server: RedisServer) -> int:
    return int(server.command("ZCARD", "{hf:0}/deadlines"))


def run(server: RedisServer, scenario: Callable[[Kit], Awaitable[None]]) -> None:
    async def whole() -> None:
        harness = Harness(server.url)
        kit = Kit(harness, await harness.open())
        await kit.begin()
        await scenario(kit)
        await kit.close()

    asyncio.run(whole())


def test_tasks_that_never_expire_leave_nothing(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.enqueue(3)
        assert kept(redis_server) == 0

    run(redis_server, scenario)


def test_deadlines_of_tasks_that_have_begun_are_passed_over_and_forgotten(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.enqueue(30, policy=SOON)
        begun = await kit.reserve(25)
        await kit.apply(ack(begun[0]))
        await kit.apply(lifecycle.release(begun[1].task_id, begun[1].token))
        await kit.apply(lifecycle.cancel((await kit.enqueue(1, policy=SOON))[0]))
        kit.clock.advance(1_000)
        # In the order of their deadlines, the ones that have begun come first.
        assert len((await kit.store.expired(10)).unstarted) == 5
        assert kept(redis_server) == 5

    run(redis_server, scenario)


def test_pruned_and_discarded_tasks_take_their_deadlines_along(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        later = RunPolicy(expires_ms=10_000_000, dead_letter=True)
        await kit.apply(ack(await kit.claim(policy=later)))
        dead = await kit.dead_letter(policy=later)
        assert kept(redis_server) == 2
        await kit.apply(lifecycle.discard(dead, "not needed"))
        assert kept(redis_server) == 1
        kit.clock.advance(2_000)
        assert await kit.prune(KEEP_NOTHING) == 1
        assert kept(redis_server) == 0
        assert int(redis_server.command("ZCARD", "{hf:0}/all")) == 0

    run(redis_server, scenario)
