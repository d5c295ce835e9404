"""When a child asks for a successor, how it is resized, and when it tells that the store answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.core.task import State
from holdfast.testing.clock import SteppedClock
from holdfast.worker.child.watchdog import Watchdog
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import FromChild, Recycle, Reserving
from holdfast.worker.recycle import RecycleLimits, resident_bytes
from tests.worker.rig import Rig

MB = 2**20


def test_without_a_limit_nothing_is_looked_at() -> None:
    assert RecycleLimits.by(WorkerOptions(app="a:b")) is None
    assert RecycleLimits.by(WorkerOptions(app="a:b", max_tasks=3)) is not None
    assert RecycleLimits.by(WorkerOptions(app="a:b", max_memory=MB)) is not None


def test_the_reason_is_given_once() -> None:
    limits = RecycleLimits(10, None)
    assert [limits.check(ended) for ended in (4, 5, 1, 3)] == [None, None, "has run 10 tasks", None]
    assert not limits.full


def test_memory_is_weighed_against_its_limit() -> None:
    used = [70 * MB, 81 * MB, 99 * MB, 100 * MB]
    limits = RecycleLimits(None, 100 * MB, lambda: used[0])
    told = []
    for _ in range(4):
        told.append((limits.check(1), limits.full))
        del used[0]
    assert told == [(None, False), ("uses 81 MB of memory", False), (None, False), (None, True)]


def test_an_app_that_is_too_large_before_its_first_task_still_works(caplog: pytest.LogCaptureFixture) -> None:
    limits = RecycleLimits(None, 100 * MB, lambda: 150 * MB)
    assert (limits.check(0), limits.check(0), limits.full) == (None, None, False)
    assert caplog.text.count("before its first task") == 1
    assert (limits.check(1), limits.full) == ("uses 150 MB of memory", True)


def test_it_weighs_this_very_process() -> None:
    limits = RecycleLimits(None, resident_bytes(os.getpid()) // 2)
    assert limits.check(1) is not None
    assert limits.full


def test_a_child_that_has_done_its_share_says_so_and_goes_on() -> None:
    async def scenario() -> None:
        rig = Rig(_nothing, recycle=RecycleLimits(5, None), slots=2)
        await rig.enqueue(20)
        await rig.drain()
        assert [message.reason for message in rig.news if isinstance(message, Recycle)] == ["has run 6 tasks"]
        await rig.store.close()

    asyncio.run(scenario())


def test_a_full_child_takes_on_nothing_more_and_ends() -> None:
    async def scenario() -> None:
        used = 50 * MB
        calls = 0

        async def leak() -> None:
            nonlocal used, calls
            calls += 1
            used += 20 * MB

        rig = Rig(leak, recycle=RecycleLimits(None, 100 * MB, lambda: used), slots=1)
        await rig.enqueue(10)
        await asyncio.wait_for(rig.fetcher.run(), 20)
        assert calls == 3
        states = [task.state for task in await rig.tasks()]
        assert (states.count(State.SUCCEEDED), states.count(State.READY)) == (3, 7)
        assert len([message for message in rig.news if isinstance(message, Recycle)]) == 1
        await rig.store.close()

    asyncio.run(scenario())


async def _nothing() -> None:
    return None


async def _pulsing(rig: Rig, enough: Callable[[list[Any]], bool]) -> list[Any]:
    told: list[FromChild] = []

    async def tell(message: FromChild) -> None:
        told.append(message)

    watchdog = asyncio.create_task(Watchdog(rig.slots, rig.fetcher, 60, SystemClock(), tell).run())
    async with asyncio.timeout(20):
        while not enough(told):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    watchdog.cancel()
    return told


def test_a_child_that_only_grows_asks_for_a_successor_too() -> None:
    async def scenario() -> None:
        used = 10 * MB
        rig = Rig(_nothing, recycle=RecycleLimits(None, 100 * MB, lambda: used))
        await rig.enqueue(1)
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until(State.SUCCEEDED, 1)
        used = 90 * MB
        await _pulsing(rig, lambda _: any(isinstance(message, Recycle) for message in rig.news))
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())


def test_it_tells_when_the_store_answered_and_soon_for_the_first_time() -> None:
    async def scenario() -> None:
        rig = Rig(_nothing)
        began_ms = SystemClock().monotonic_ms()
        working = asyncio.create_task(rig.fetcher.run())
        (told,) = await _pulsing(rig, lambda told: len(told) == 1)
        assert isinstance(told, Reserving)
        assert began_ms <= told.sent_at_ms <= SystemClock().monotonic_ms()
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())


def test_a_child_without_room_is_as_good_as_one_that_reserves() -> None:
    async def scenario() -> None:
        leave = asyncio.Event()

        async def wait() -> None:
            await leave.wait()

        clock = SteppedClock()
        rig = Rig(wait, slots=1, clock=clock)
        await rig.enqueue(1)
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until_started(1)
        clock.advance(50)
        assert rig.fetcher.reserved_at_ms == clock.monotonic_ms()
        leave.set()
        await rig.until(State.SUCCEEDED, 1)
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())


def test_slots_change_while_tasks_run() -> None:
    async def scenario() -> None:
        leave = asyncio.Event()

        async def wait() -> None:
            await leave.wait()

        rig = Rig(wait, slots=2)
        await rig.enqueue(12)
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until(State.CLAIMED, 2)
        rig.slots.resize(8)
        await rig.until(State.CLAIMED, 8)
        rig.slots.resize(3)
        assert rig.slots.free == -5, "what runs goes on"
        rig.most_running = 0
        leave.set()
        await rig.until(State.SUCCEEDED, 12)
        assert rig.most_running <= 3
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())


def test_slots_that_grow_slowly_after_a_crash_keep_doing_so_when_resized() -> None:
    async def scenario() -> None:
        rig = Rig(_nothing, slots=50, slow_start=True)
        rig.slots.resize(10)
        assert rig.slots.limit == 1
        await rig.enqueue(30)
        await rig.drain()
        assert rig.slots.limit == 10
        await rig.store.close()

    asyncio.run(scenario())
