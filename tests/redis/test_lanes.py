"""Lanes of types and priorities in one queue: handed out by rank, whatever a level is worth there."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.priority import AGED_STEP_MS, STRICT_STEP_MS, rank
from holdfast.core.task import Claimed, NewTask
from holdfast.stores.contract import Reserve, Store
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
        await store.set_step("q", step_ms)
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


def test_lanes_that_are_empty_are_forgotten(redis_server: RedisServer) -> None:
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
    assert redis_server.command("KEYS", "{hf:0}/lanes/*") == []
    assert redis_server.command("KEYS", "{hf:0}/ready/*") == []


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
