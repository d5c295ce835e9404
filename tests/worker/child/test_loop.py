"""The exchange between a child and the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import pytest

from holdfast.clock import SystemClock
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import NewTask, State
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.contract import Reserve, Reserved, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.faulty import Faults, FaultyStore
from holdfast.worker.child.executors import ThreadExecutor
from holdfast.worker.child.run import Run
from holdfast.worker.child.slots import MAX_SETTLE_BYTES
from holdfast.worker.child.watchdog import Watchdog
from holdfast.worker.protocol import Recycle, WakeupUnused
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
        await rig.until_started(400)
        store.strike(False)
        await rig.until(State.SUCCEEDED, 400)
        rig.fetcher.quiet()
        await working
        assert store.struck["lost_replies"] > 0
        assert len(rig.started) == 400
        assert {task.deliveries for task in await rig.tasks()} == {1}
        assert rig.held() == set()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [True, False])
def test_never_runs_more_than_its_slots(is_async: bool) -> None:
    def in_thread() -> None:
        pass

    async def scenario() -> None:
        rig = Rig(nothing if is_async else in_thread, slots=7, is_async=is_async)
        await rig.enqueue(100)
        await rig.drain()
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
        await rig.drain()
        assert store.asked[0] == 1
        assert store.asked[1] <= 2
        assert rig.slots.limit == 16

    asyncio.run(scenario())


def test_leaving_releases_what_an_exchange_in_flight_brings() -> None:
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


def test_what_a_long_outage_brings_back_is_released_and_not_run() -> None:
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
        await rig.drain()
        for task in await rig.tasks():
            assert [attempt.outcome for attempt in task.history] == ["released", "succeeded"]

    asyncio.run(scenario())


class _Watched(PassingStore):
    """Knows whether its worker is idle: it waits for a wake-up, and its last look found nothing."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.waiting = 0
        self.empty_looks = 0
        self._found_nothing = False

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        self.waiting += 1
        try:
            return await super().wait(wakeups, timeout_ms)
        finally:
            self.waiting -= 1

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        self._found_nothing = False
        reserved = await super().reserve(request, settle)
        self._found_nothing = not reserved.tasks
        self.empty_looks += self._found_nothing
        return reserved

    async def until_idle(self, looks: int = 0) -> None:
        """Waits until its worker is idle after more than so many looks that found nothing."""
        async with asyncio.timeout(30):
            while not (self.waiting and self._found_nothing and self.empty_looks > looks):  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def test_a_task_enqueued_to_an_idle_child_is_picked_up_by_the_wakeup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.child.loop.SAFETY_POLL_MS", 3_600_000)

    async def scenario() -> None:
        store = _Watched(open_store("sqlite://"))
        rig = Rig(nothing, store=store)
        working = asyncio.create_task(rig.fetcher.run())
        for count in range(1, 6):
            await store.until_idle()
            await rig.enqueue(1)
            await rig.until(State.SUCCEEDED, count)
        rig.fetcher.quiet()
        await working

    asyncio.run(scenario())


@pytest.mark.parametrize("some_types_only", [True, False])
def test_a_ring_that_brings_nothing_is_passed_on_to_children_for_other_types(
    monkeypatch: pytest.MonkeyPatch, some_types_only: bool
) -> None:
    monkeypatch.setattr("holdfast.worker.child.loop.SAFETY_POLL_MS", 3_600_000)

    async def scenario() -> None:
        store = _Watched(open_store("sqlite://"))
        rig = Rig(nothing, store=store, some_types_only=some_types_only)
        working = asyncio.create_task(rig.fetcher.run())
        await store.until_idle()
        other = NewTask(task_id=IDS.task_id(), type="other", queue="default", payload=b"{}")
        await rig.store.enqueue([other])
        await rig.enqueue(1)
        await rig.until(State.SUCCEEDED, 1)
        await store.until_idle()
        looks = store.empty_looks
        await rig.store.enqueue([msgspec.structs.replace(other, task_id=IDS.task_id())])
        await store.until_idle(looks)
        assert (WakeupUnused() in rig.news) is some_types_only
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())


class _Deaf(PassingStore):
    """Its wake-ups are never delivered."""

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        await asyncio.Event().wait()
        return False


def test_a_child_that_is_told_to_look_needs_no_bell() -> None:
    async def scenario() -> None:
        store = _Watched(_Deaf(open_store("sqlite://")))
        rig = Rig(nothing, store=store)
        working = asyncio.create_task(rig.fetcher.run())
        for count in range(1, 4):
            await store.until_idle()
            await rig.enqueue(1)
            rig.fetcher.look()
            await rig.until(State.SUCCEEDED, count)
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())


# -- what a store cannot take, and how much of it ------------------------------------------------------------


class PickyStore(PassingStore):
    """Cannot store some results, in whatever company they come; knows the size of each batch."""

    def __init__(self, *, errors_too: bool = False) -> None:
        super().__init__(open_store("sqlite://"))
        self._errors_too = errors_too
        self.batches: list[int] = []

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        self._look_at(settle)
        return await super().reserve(request, settle)

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        self._look_at(changes)
        return await super().apply(changes)

    def _look_at(self, changes: Sequence[Change]) -> None:
        self.batches.append(sum(len(change.result or b"") for change in changes))
        for change in changes:
            if b"poison" in (change.result or b""):
                "\ud800".encode()  # as a driver would
            if self._errors_too and change.error is not None:
                raise StoreError("too large")


@pytest.mark.parametrize("slots", [10, 40])  # with more slots than tasks there is always room: settled by `reserve`
def test_an_end_that_cannot_be_stored_fails_its_own_task_only(slots: int) -> None:
    async def poison(number: int) -> str:
        return "poison" if number % 5 == 0 else "fine"

    async def scenario() -> None:
        rig = Rig(poison, store=PickyStore(), slots=slots)
        for number in range(20):
            await rig.enqueue(1, b'{"number":%d}' % number)
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until(State.DEAD_LETTERED, 4)
        await rig.until(State.SUCCEEDED, 16)
        rig.fetcher.quiet()
        await working
        dead = [task for task in await rig.tasks() if task.state is State.DEAD_LETTERED]
        assert {task.reason for task in dead} == {"not_retryable"}
        assert all(task.history[-1].error is not None for task in dead)
        assert all("cannot be stored" in task.history[-1].error.message for task in dead if task.history[-1].error)
        assert rig.held() == set()

    asyncio.run(scenario())


def test_an_end_that_cannot_even_be_stored_as_a_failure_is_left_to_its_lease() -> None:
    async def poison() -> str:
        return "poison"

    async def scenario() -> None:
        rig = Rig(poison, store=PickyStore(errors_too=True))
        await rig.enqueue(1)
        working = asyncio.create_task(rig.fetcher.run())
        async with asyncio.timeout(30):
            while not rig.started or rig.held():  # noqa: ASYNC110  (the supervisor is told that nothing holds it)
                await asyncio.sleep(0.005)
        rig.fetcher.quiet()
        await working
        (task,) = await rig.tasks()
        assert task.state is State.CLAIMED

    asyncio.run(scenario())


def test_settlements_are_bounded_in_bytes() -> None:
    size = MAX_SETTLE_BYTES // 3

    async def large() -> str:
        return "x" * (size + size)

    async def scenario() -> None:
        store = PickyStore()
        rig = Rig(large, store=store)
        rig.type.codec.max_bytes = MAX_SETTLE_BYTES
        await rig.enqueue(10)
        await rig.drain()
        assert max(store.batches) <= MAX_SETTLE_BYTES
        assert sum(1 for batch in store.batches if batch) == 10

    asyncio.run(scenario())


class CuttingStore(PassingStore):
    """Hands out one task a call, and says when others stayed behind."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        reserved = await super().reserve(msgspec.structs.replace(request, max_tasks=1), settle)
        return msgspec.structs.replace(reserved, cut=bool(reserved.tasks))


def test_an_answer_that_was_cut_is_followed_by_another_question_at_once() -> None:
    async def scenario() -> None:
        let_go = asyncio.Event()

        async def waits() -> None:
            await let_go.wait()

        rig = Rig(waits, store=CuttingStore(open_store("sqlite://")), slots=10, clock=SteppedClock())
        await rig.enqueue(10)
        working = asyncio.create_task(rig.fetcher.run())
        async with asyncio.timeout(30):
            while len(rig.slots.running) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        let_go.set()
        await rig.until(State.SUCCEEDED, 10)
        rig.fetcher.quiet()
        await working

    asyncio.run(scenario())


# -- the watchdog --------------------------------------------------------------------------------------------


class Unreadable(Exception):
    """Its text is never there."""

    let_go = threading.Event()

    def __str__(self) -> str:
        self.let_go.wait(60)
        return "at last"


def test_a_run_that_hangs_after_its_function_has_returned_fails_and_frees_its_slot() -> None:
    hangs = True

    def work() -> int:
        if hangs:
            raise Unreadable
        return 1

    async def scenario() -> None:
        nonlocal hangs
        rig = Rig(work, slots=1, is_async=False)
        watchdog = Watchdog(rig.slots, rig.fetcher, 600, SystemClock(), rig._send, return_limit_ms=100)
        await rig.enqueue(1, policy=RunPolicy(max_attempts=2, base_ms=0))
        beside = asyncio.create_task(watchdog.run())
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until(State.RETRY_PENDING, 1)
        hangs = False
        await rig.enqueue(1)
        await rig.until(State.SUCCEEDED, 1)
        Unreadable.let_go.set()  # what comes so late changes nothing
        executor = rig._executor
        assert isinstance(executor, ThreadExecutor)
        async with asyncio.timeout(30):
            while executor._busy:  # noqa: ASYNC110  (its thread needs the event loop to be open)
                await asyncio.sleep(0.001)
        rig.fetcher.quiet()
        await working
        beside.cancel()
        (hung, _) = await rig.tasks()
        error = hung.history[0].error
        assert error is not None
        assert error.type == "hung_after_return"
        assert [message for message in rig.news if isinstance(message, Recycle)]

    asyncio.run(scenario())


def test_a_run_whose_asyncio_task_was_cancelled_before_it_began_fails() -> None:
    async def scenario() -> None:
        rig = Rig(nothing)
        watchdog = Watchdog(rig.slots, rig.fetcher, 600, SystemClock(), rig._send)
        start = rig._start

        def cancelled_at_once(run: Run) -> None:
            start(run)
            assert run.handle is not None
            if run.task.attempt == 1:
                run.handle.cancel()

        rig.fetcher._start = cancelled_at_once
        await rig.enqueue(1, policy=RunPolicy(max_attempts=2, base_ms=0))
        beside = asyncio.create_task(watchdog.run())
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until(State.RETRY_PENDING, 1)
        rig.fetcher.quiet()
        await working
        beside.cancel()

    asyncio.run(scenario())


class _Recording(PassingStore):
    """Remembers the requests, and loses the reply to the first one; waits for a wake-up until it is told of one."""

    def __init__(self) -> None:
        super().__init__(open_store("sqlite://"))
        self.requests: list[Reserve] = []
        self.lose_next_reply = False
        self.waiting = 0

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        self.requests.append(request)
        reserved = await super().reserve(request, settle)
        if self.lose_next_reply:
            self.lose_next_reply = False
            raise StoreUnavailable("the reply is lost")
        return reserved

    async def wait(self, queues: Sequence[str], timeout_ms: int) -> bool:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1
        return True


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_only_the_first_call_of_a_reserve_says_that_its_claim_id_is_fresh() -> None:
    async def scenario() -> None:
        store = _Recording()
        rig = Rig(nothing, store=store, slots=2)
        await rig.enqueue(2)
        store.lose_next_reply = True
        await rig.drain()
        first, repeat, *_ = store.requests
        assert (first.fresh, repeat.fresh) == (True, False)
        assert msgspec.structs.replace(repeat, fresh=True) == first
        assert len(rig.started) == 2

    asyncio.run(scenario())


def test_a_full_child_waits_for_no_wake_up() -> None:
    async def scenario() -> None:
        let_go = asyncio.Event()

        async def work() -> None:
            await let_go.wait()

        store = _Recording()
        rig = Rig(work, store=store, slots=2)
        await rig.enqueue(1)
        working = asyncio.create_task(rig.fetcher.run())
        await _until(lambda: store.waiting == 1)
        await rig.enqueue(1)  # without a wake-up
        rig.fetcher.look()
        await _until(lambda: len(rig.slots.running) == 2)
        await _until(lambda: store.waiting == 0)
        let_go.set()
        rig.fetcher.quiet()
        await working

    asyncio.run(scenario())
