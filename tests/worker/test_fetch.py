"""The exchange between a child and the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import pytest

from holdfast.core.lifecycle import Change
from holdfast.core.task import NewTask, State
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Reserve, Reserved
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.faulty import Faults, FaultyStore
from holdfast.testing.wrapping import PassingStore
from holdfast.worker.messages import RungInVain
from tests.worker.rig import IDS, Rig


async def nothing() -> None:
    pass


def test_lost_calls_and_replies_make_no_task_run_twice() -> None:
    async def scenario() -> None:
        store = FaultyStore(open_store("sqlite://"), Faults(seed=1, lost_calls=0.15, lost_replies=0.25))
        rig = Rig(nothing, store=store, slots=50)
        store.strike(False)
        await rig.enqueue(400)
        store.strike(True)
        working = asyncio.create_task(rig.fetcher.run())
        await asyncio.wait_for(_until_started(rig, 400), 60)
        store.strike(False)
        await rig.until(State.SUCCEEDED, 400)
        rig.fetcher.quiet()
        await working
        assert store.struck["lost_replies"] > 0
        assert len(rig.started) == 400
        assert {task.deliveries for task in await rig.tasks()} == {1}
        assert rig.held() == set()

    asyncio.run(scenario())


async def _until_started(rig: Rig, count: int) -> None:
    while len(rig.started) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_async", [True, False])
def test_never_runs_more_than_its_slots(is_async: bool) -> None:
    def in_thread() -> None:
        pass

    async def scenario() -> None:
        rig = Rig(nothing if is_async else in_thread, slots=7, is_async=is_async)
        await rig.enqueue(100)
        await rig.work_off()
        assert rig.most_running <= 7
        assert rig.held() == set()

    asyncio.run(scenario())


def test_a_finished_task_is_settled_while_the_others_run_on() -> None:
    async def scenario() -> None:
        let_go = asyncio.Event()
        first = True

        async def work() -> None:
            nonlocal first
            if first:
                first = False
                return
            await let_go.wait()

        rig = Rig(work, slots=10)
        await rig.enqueue(10)
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until(State.SUCCEEDED, 1)
        assert len(rig.slots.running) == 9
        let_go.set()
        await rig.until(State.SUCCEEDED, 10)
        rig.fetcher.quiet()
        await working

    asyncio.run(scenario())


def test_slow_start_begins_with_one_task_and_doubles() -> None:
    class Watching(PassingStore):
        asked: ClassVar[list[int]] = []

        async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
            self.asked.append(request.max_tasks)
            return await super().reserve(request, settle)

    async def scenario() -> None:
        store = Watching(open_store("sqlite://"))
        rig = Rig(nothing, slots=16, slow_start=True, store=store)
        await rig.enqueue(60)
        await rig.work_off()
        assert store.asked[0] == 1
        assert store.asked[1] <= 2
        assert rig.slots.limit == 16

    asyncio.run(scenario())


def test_leaving_hands_back_what_an_exchange_in_flight_brings() -> None:
    class Slow(PassingStore):
        asked = asyncio.Event()
        answer = asyncio.Event()

        async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
            reserved = await super().reserve(request, settle)
            self.asked.set()
            await self.answer.wait()
            return reserved

    async def scenario() -> None:
        store = Slow(open_store("sqlite://"))
        rig = Rig(nothing, store=store)
        await rig.enqueue(3)
        working = asyncio.create_task(rig.fetcher.run())
        await store.asked.wait()
        rig.fetcher.leave()
        store.answer.set()
        await working
        assert rig.started == []
        assert rig.fetcher.released == 3
        assert [(task.state, task.attempt) for task in await rig.tasks()] == [(State.READY, 0)] * 3

    asyncio.run(scenario())


def test_what_a_long_outage_brings_back_is_handed_back_and_not_run() -> None:
    clock = SteppedClock()

    class Out(PassingStore):
        lost = False

        async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
            reserved = await super().reserve(request, settle)
            if not self.lost:
                self.lost = True
                clock.advance(40_000)
                raise StoreUnavailable("the reply was lost")
            return reserved

    async def scenario() -> None:
        rig = Rig(nothing, store=Out(open_store("sqlite://")), clock=clock)
        await rig.enqueue(3)
        await rig.work_off()
        for task in await rig.tasks():
            assert [attempt.outcome for attempt in task.history] == ["released", "succeeded"]

    asyncio.run(scenario())


def test_a_task_enqueued_to_an_idle_child_is_picked_up_by_the_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.fetch.SAFETY_POLL_MS", 3_600_000)

    async def scenario() -> None:
        rig = Rig(nothing)
        working = asyncio.create_task(rig.fetcher.run())
        for count in range(1, 6):
            await asyncio.sleep(0.02)
            await rig.enqueue(1)
            await rig.until(State.SUCCEEDED, count)
        rig.fetcher.quiet()
        await working

    asyncio.run(scenario())


@pytest.mark.parametrize("some_types_only", [True, False])
def test_a_ring_that_brings_nothing_is_passed_on_to_children_for_other_types(
    monkeypatch: pytest.MonkeyPatch, some_types_only: bool
) -> None:
    monkeypatch.setattr("holdfast.worker.fetch.SAFETY_POLL_MS", 3_600_000)

    async def scenario() -> None:
        rig = Rig(nothing, some_types_only=some_types_only)
        working = asyncio.create_task(rig.fetcher.run())
        await asyncio.sleep(0.02)
        other = NewTask(task_id=IDS.task_id(), type="other", queue="default", payload=b"{}")
        await rig.store.enqueue([other])
        await rig.enqueue(1)
        await rig.until(State.SUCCEEDED, 1)
        await rig.store.enqueue([msgspec.structs.replace(other, task_id=IDS.task_id())])
        await asyncio.sleep(0.1)
        assert (RungInVain() in rig.news) is some_types_only
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())


class _Deaf(PassingStore):
    """Its bells are never heard."""

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        await asyncio.Event().wait()
        return False


def test_a_child_that_is_told_to_look_needs_no_bell() -> None:
    async def scenario() -> None:
        rig = Rig(nothing, store=_Deaf(open_store("sqlite://")))
        working = asyncio.create_task(rig.fetcher.run())
        for count in range(1, 4):
            await asyncio.sleep(0.02)
            await rig.enqueue(1)
            rig.fetcher.look()
            await rig.until(State.SUCCEEDED, count)
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())
