"""Occurrences of schedules on a server at its limits: full, without its tail, or with a broken connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from holdfast.clock import SystemClock
from holdfast.core.ids import IdSource
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import NewTask, State
from holdfast.errors import StoreFull
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE_WAKEUP, Store
from holdfast.stores.open import open_store
from tests.servers.redis_server import RedisServer

IDS = IdSource(SystemClock().now_ms, os.urandom)
EVERY_MS = 60_000


def a_schedule(**fields: object) -> Schedule:
    schedule = Schedule(
        name="hourly", timing=Timing(every_ms=EVERY_MS), call=ScheduledCall(type="work"), next_at_ms=EVERY_MS
    )
    return replace(schedule, **fields)


def an_occurrence(at_ms: int = EVERY_MS) -> NewTask:
    return NewTask(
        task_id=IDS.task_id(), type="work", queue="default", payload=b"{}", request_id=f"schedule:hourly:{at_ms}"
    )


async def fire(store: Store, before: Schedule) -> bool:
    """Fires the next occurrence of a schedule, as the maintenance does."""
    at_ms = before.next_at_ms or 0
    after = replace(before, next_at_ms=at_ms + EVERY_MS, last_at_ms=at_ms, version=before.version + 1)
    return await documents.put_schedule(store, "hourly", after, before.version, [an_occurrence(at_ms)])


@pytest.fixture
def full_server(any_server: RedisServer) -> Iterator[RedisServer]:
    """Full as soon as `maxmemory` is set to 1."""
    yield any_server
    any_server.command("CONFIG", "SET", "maxmemory", 0)


def test_a_full_server_fires_no_occurrence_but_lets_it_be_paused(full_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(full_server.url)
        schedule = a_schedule()
        assert await documents.put_schedule(store, "hourly", schedule, 0)
        full_server.command("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreFull):
            await fire(store, schedule)
        assert await documents.schedule(store, "hourly") == schedule
        paused = replace(schedule, paused=True, next_at_ms=None, version=2)
        assert await documents.put_schedule(store, "hourly", paused, 1)
        assert (await documents.schedules(store, 10 * EVERY_MS)).schedules == []
        assert (await documents.schedules(store)).schedules == [paused]
        assert await store.counts() == []
        await store.close()

    asyncio.run(scenario())


def test_an_occurrence_that_the_server_forgot_is_there_again_and_once(redis_server: RedisServer) -> None:
    """The fast profile keeps nothing: a restart loses the schedule and the task of its occurrence."""

    async def scenario() -> None:
        store = open_store(redis_server.url)
        schedule = a_schedule()
        await documents.put_schedule(store, "hourly", schedule, 0)
        assert await fire(store, schedule)
        await asyncio.to_thread(redis_server.kill)
        await asyncio.to_thread(redis_server.start)
        # The leader finds the occurrence not fired, and fires it; the task of the first time is sent again then.
        await documents.put_schedule(store, "hourly", schedule, 0)
        assert await fire(store, schedule)
        [counts] = await store.counts()
        assert counts.states == {State.READY: 1}
        await store.close()

    asyncio.run(scenario())


def test_the_task_of_a_forgotten_occurrence_is_sent_again_by_the_next_reader(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(redis_server.url)
        await documents.put_schedule(store, "hourly", a_schedule(), 0)
        made = an_occurrence()
        await documents.put_schedule(store, "hourly", a_schedule(version=2), 1, [made])
        await asyncio.to_thread(redis_server.kill)
        await asyncio.to_thread(redis_server.start)
        [task] = await store.get([made.task_id])
        assert task is not None
        await store.close()

    asyncio.run(scenario())


def test_the_maintenance_is_notified_of_an_occurrence_that_is_sooner_than_any_other(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        store = open_store(redis_server.url)
        heard = []
        for name, next_at_ms in (("a", None), ("b", 5_000), ("c", 6_000), ("d", 4_000)):
            await documents.put_schedule(store, name, a_schedule(name=name, next_at_ms=next_at_ms), 0)
            heard.append(await store.wait([MAINTENANCE_WAKEUP], 10))
        assert heard == [False, True, False, True]
        await store.close()

    asyncio.run(scenario())
