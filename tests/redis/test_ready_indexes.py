"""Indexes by type and priority in one queue: handed out by rank, and made-up types cost the others nothing."""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets

import pytest

from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.priority import AGED_STEP_MS, STRICT_STEP_MS, rank
from holdfast.core.task import Claimed, NewTask
from holdfast.stores.contract import Reserve, Store
from holdfast.stores.documents import set_step
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from tests.servers.redis_server import RedisServer

IDS = IdSource(SystemClock().now_ms, os.urandom)
TYPES = ("a", "b", "c")
PRIORITIES = (-100, -3, 0, 1, 2, 100)


def a_task(kind: str, priority: int) -> NewTask:
    return NewTask(task_id=IDS.task_id(), type=kind, queue="q", payload=b"{}", priority=priority)


async def reserve(store: Store, number: int, types: frozenset[str] | None = None) -> list[Claimed]:
    request = Reserve(
        claim_id=IDS.claim_id(),
        worker_id="w",
        shares=[QueueShare("q", number)],
        max_tasks=number,
        lease_ms=60_000,
        types=types,
    )
    return (await store.reserve(request)).tasks


async def drained(store: Store, number: int) -> list[Claimed]:
    """All that waits, so many at a time."""
    tasks: list[Claimed] = []
    while got := await reserve(store, number):
        tasks += got
    return tasks


@pytest.mark.parametrize("step_ms", [STRICT_STEP_MS, AGED_STEP_MS, 700])
@pytest.mark.parametrize("at_once", [1, 7, 1_000])
def test_tasks_come_by_rank_then_by_id(any_server: RedisServer, step_ms: int, at_once: int) -> None:
    async def scenario() -> None:
        clock, draw = SteppedClock(), random.Random(step_ms + at_once)
        store = open_store(any_server.url, clock=clock)
        since: dict[str, int] = {}
        for _ in range(60):
            new = [a_task(draw.choice(TYPES), draw.choice(PRIORITIES)) for _ in range(draw.randint(1, 9))]
            await store.enqueue(new)
            since |= {task.task_id: clock.now_ms() for task in new}
            clock.advance(draw.choice((0, 1, 500, 20_000)))
        await set_step(store, "q", step_ms)
        tasks = await drained(store, at_once)
        ranks = [(rank(since[task.task_id], task.priority, step_ms), task.task_id) for task in tasks]
        assert ranks == sorted(ranks)
        assert len(tasks) == len(since)
        await store.close()

    asyncio.run(scenario())


def test_only_known_types_are_handed_out_whatever_their_priority(any_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(any_server.url)
        await store.enqueue([a_task(kind, priority) for kind in TYPES for priority in PRIORITIES])
        got = await reserve(store, 100, frozenset({"b", "d"}))
        assert [(task.type, task.priority) for task in got] == [("b", priority) for priority in reversed(PRIORITIES)]
        await store.close()

    asyncio.run(scenario())


def test_empty_indexes_are_forgotten(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(redis_server.url)
        new = [a_task(kind, priority) for kind in TYPES for priority in PRIORITIES]
        await store.enqueue(new)
        for task in new[:6]:
            await store.apply([lifecycle.cancel(task.task_id)])
        await store.apply([lifecycle.prioritize(task.task_id, 9) for task in new[6:12]])
        assert len(await drained(store, 5)) == 12
        await store.close()

    asyncio.run(scenario())
    assert [key for key in redis_server.command("KEYS", "*") if re.search("/(ready|types|levels)/", key)] == []


def test_the_oldest_is_found_behind_the_urgent(any_server: RedisServer) -> None:
    async def scenario() -> None:
        clock = SteppedClock()
        store = open_store(any_server.url, clock=clock)
        for priority in PRIORITIES:
            await store.enqueue([a_task(kind, priority) for kind in TYPES])
            clock.advance(1_000)
        [counts] = await store.counts()
        assert counts.oldest_ready_ms == 1_000 * len(PRIORITIES)
        await store.close()

    asyncio.run(scenario())


def calls_of(server: RedisServer, command: str) -> int:
    """How often a command was called since the statistics were reset, by scripts too."""
    found = server.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(found.split(",")[0].removeprefix("calls="))


def test_made_up_types_cost_other_calls_nothing(any_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(any_server.url)
        await store.enqueue([a_task("known", 0), a_task("known", 5)])
        for _ in range(3):
            await store.enqueue(
                [a_task(f"made-up-{secrets.token_hex(8)}", random.choice((0, 5))) for _ in range(1_000)]
            )
        any_server.command("CONFIG", "RESETSTAT")
        [counts] = await store.counts()
        assert counts.oldest_ready_ms is not None
        got = await reserve(store, 10, frozenset({"known", "unknown"}))
        assert [(task.type, task.priority) for task in got] == [("known", 5), ("known", 0)]
        assert len(await reserve(store, 10)) == 10
        assert calls_of(any_server, "zrange") < 500
        assert calls_of(any_server, "smembers") < 10
        await store.close()

    asyncio.run(scenario())


def test_many_types_are_handed_out_in_their_order(any_server: RedisServer) -> None:
    async def scenario() -> None:
        clock, draw = SteppedClock(), random.Random(7)
        store = open_store(any_server.url, clock=clock)
        new = [a_task(f"type-{number}", 0) for number in range(400)]
        draw.shuffle(new)
        order: list[str] = []
        for start in range(0, len(new), 50):
            await store.enqueue(new[start : start + 50])
            order += sorted(task.task_id for task in new[start : start + 50])
            clock.advance(1)
        ours = {task.task_id: task.type for task in new[::2]}
        got = [await reserve(store, 20, frozenset(ours.values())) for _ in range(3)]
        assert [task.task_id for batch in got for task in batch] == [each for each in order if each in ours][:60]
        left = [each for each in order if each not in {task.task_id for batch in got for task in batch}]
        assert [task.task_id for task in await reserve(store, 30)] == left[:30]
        await store.close()

    asyncio.run(scenario())
