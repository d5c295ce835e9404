"""Ticks of schedules where a server has its limits: full, without its tail, or answering into a broken line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from holdfast.clock import SystemClock
from holdfast.core.ids import IdSource
from holdfast.core.schedule import Call, Schedule, Timing
from holdfast.core.task import NewTask, State
from holdfast.errors import StoreFull
from holdfast.stores.contract import UPKEEP_BELL, Store
from holdfast.stores.open import open_store
from tests.servers.redis_server import RedisServer

IDS = IdSource(SystemClock().now_ms, os.urandom)
EVERY_MS = 60_000


def a_schedule(**fields: object) -> Schedule:
    schedule = Schedule(name="hourly", timing=Timing(every_ms=EVERY_MS), call=Call(type="work"), next_at_ms=EVERY_MS)
    return replace(schedule, **fields)


def a_tick(at_ms: int = EVERY_MS) -> NewTask:
    return NewTask(
        task_id=IDS.task_id(), type="work", queue="default", payload=b"{}", request_id=f"schedule:hourly:{at_ms}"
    )


async def tick(store: Store, before: Schedule) -> bool:
    """Makes the next tick of a schedule, as the upkeep does."""
    at_ms = before.next_at_ms or 0
    after = replace(before, next_at_ms=at_ms + EVERY_MS, last_at_ms=at_ms, version=before.version + 1)
    return await store.put_schedule("hourly", after, before.version, [a_tick(at_ms)])


@pytest.fixture
def full_server(any_server: RedisServer) -> Iterator[RedisServer]:
    """Full as soon as `maxmemory` is set to 1."""
    yield any_server
    any_server.command("CONFIG", "SET", "maxmemory", 0)


def test_a_full_server_makes_no_tick_but_lets_it_be_paused(full_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(full_server.url)
        schedule = a_schedule()
        assert await store.put_schedule("hourly", schedule, 0)
        full_server.command("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreFull):
            await tick(store, schedule)
        assert await store.schedule("hourly") == schedule
        paused = replace(schedule, paused=True, next_at_ms=None, version=2)
        assert await store.put_schedule("hourly", paused, 1)
        assert (await store.schedules(10 * EVERY_MS)).schedules == []
        assert (await store.schedules()).schedules == [paused]
        assert await store.counts() == []
        await store.close()

    asyncio.run(scenario())


def test_a_tick_that_the_server_forgot_is_there_again_and_once(redis_server: RedisServer) -> None:
    """The fast profile keeps nothing: a restart loses the schedule and the task of its tick."""

    async def scenario() -> None:
        store = open_store(redis_server.url)
        schedule = a_schedule()
        await store.put_schedule("hourly", schedule, 0)
        assert await tick(store, schedule)
        await asyncio.to_thread(redis_server.kill)
        await asyncio.to_thread(redis_server.start)
        # The owner finds the tick not made, and makes it; the task of the first time is sent again then.
        await store.put_schedule("hourly", schedule, 0)
        assert await tick(store, schedule)
        [counts] = await store.counts()
        assert counts.states == {State.READY: 1}
        await store.close()

    asyncio.run(scenario())


def test_the_task_of_a_forgotten_tick_is_sent_again_by_whoever_notices(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(redis_server.url)
        await store.put_schedule("hourly", a_schedule(), 0)
        made = a_tick()
        await store.put_schedule("hourly", a_schedule(version=2), 1, [made])
        await asyncio.to_thread(redis_server.kill)
        await asyncio.to_thread(redis_server.start)
        [task] = await store.get([made.task_id])
        assert task is not None
        await store.close()

    asyncio.run(scenario())


def test_the_upkeep_is_woken_for_a_tick_that_is_sooner_than_any_other(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(redis_server.url)
        heard = []
        for name, next_at_ms in (("a", None), ("b", 5_000), ("c", 6_000), ("d", 4_000)):
            await store.put_schedule(name, a_schedule(name=name, next_at_ms=next_at_ms), 0)
            heard.append(await store.wait([UPKEEP_BELL], 10))
        assert heard == [False, True, False, True]
        await store.close()

    asyncio.run(scenario())
