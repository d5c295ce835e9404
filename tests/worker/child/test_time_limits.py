"""Time limits as a run sees them: it is asked to end, may clean up, and is not begun after its deadline to start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Holdfast, current
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State
from holdfast.errors import StoreUnavailable, TimedOut
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Reserve, Reserved, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.worker.protocol import Ended
from tests.support import run_worker
from tests.worker.apps.timed import make_app
from tests.worker.helpers import enqueue, enqueue_many, in_state, outcomes
from tests.worker.rig import Rig

LIMITED = RunPolicy(timeout_ms=50, base_ms=60_000)


# -- with real workers ---------------------------------------------------------------------------------------


@pytest.fixture
def timed(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app


def worker(url: str) -> Any:
    return run_worker("tests.worker.apps.timed:app", url)


def test_a_run_over_its_limit_is_ended_retried_and_buried(timed: Holdfast, url: str) -> None:
    with worker(url):
        tasks = [enqueue(timed, "waits"), enqueue(timed, "computes")]
        others = enqueue_many(timed, 20, "quick")
        for task in tasks:
            dead = in_state(task, State.DEAD_LETTERED)
            assert (dead.reason, dead.attempt) == ("timed_out", 2)
            assert outcomes(task) == ["timed_out", "timed_out"]
            error = task.history()[0].error
            assert error is not None
            assert error.type == "holdfast.errors.TimedOut"
            assert error.message == "ran longer than its time limit of 300ms"
            assert "apps/timed.py" in error.traceback, "where it was then"
            assert [line.text for line in error.log] in (["waiting"], ["computing"])
        for task in others:
            assert task.result(20) == "done"


def test_a_run_over_its_limit_may_clean_up_and_give_a_result(timed: Holdfast, url: str) -> None:
    with worker(url):
        for name in ("cleans_up", "cleans_up_in_thread"):
            task = enqueue(timed, name)
            assert task.result(20) == "cleaned up, cancelled: True"
            assert outcomes(task) == ["succeeded"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_thread_that_waits_for_another_task_is_ended_too(timed: Holdfast, url: str) -> None:
    with worker(url):
        never = timed.task_types["quick"].using(delay="1h").enqueue()
        task = enqueue(timed, "waits_for_another", never.task_id)
        assert in_state(task, State.DEAD_LETTERED).reason == "timed_out"
        assert enqueue(timed, "quick").result(20) == "done", "what enqueues and waits in this process still works"


def test_a_task_that_comes_too_late_is_never_begun(timed: Holdfast, url: str) -> None:
    late = timed.task_types["quick"].using(expires="1ms").enqueue()
    in_time = timed.task_types["quick"].using(expires="1h").enqueue()
    with worker(url):
        task = in_state(late, State.CANCELLED)
        assert (task.reason or "").startswith("expired"), task.reason
        assert in_time.result(20) == "done"


# -- inside a child ------------------------------------------------------------------------------------------


async def _ended(
    function: Callable[..., Any], policy: RunPolicy, state: State, *, is_async: bool, store: Store | None = None
) -> Rig:
    rig = Rig(function, is_async=is_async, store=store)
    await rig.enqueue(1, policy=policy)
    await rig.drain(state)
    return rig


async def forever() -> None:
    await asyncio.Event().wait()


def spin() -> None:
    while True:
        pass


@pytest.mark.parametrize("function", [forever, spin])
def test_the_attempt_counts_and_another_one_follows_after_the_backoff(function: Callable[..., Any]) -> None:
    async def scenario() -> None:
        rig = await _ended(function, LIMITED, State.RETRY_PENDING, is_async=function is forever)
        (task,) = await rig.tasks()
        assert [(run.outcome, run.attempt) for run in task.history] == [("timed_out", 1)]
        assert task.run_at_ms > task.history[0].ended_at_ms + 20_000
        assert not rig.held()
        await rig.store.close()

    asyncio.run(scenario())


def test_a_run_that_swallows_it_goes_on() -> None:
    def swallow() -> str:
        while True:
            try:
                time.sleep(0.001)
            except TimedOut:
                return "went on"

    async def scenario() -> None:
        rig = await _ended(swallow, LIMITED, State.SUCCEEDED, is_async=False)
        (task,) = await rig.tasks()
        assert task.result == b'"went on"'
        await rig.store.close()

    asyncio.run(scenario())


def test_an_error_while_cleaning_up_is_the_failure() -> None:
    async def stumble() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("the cleaning failed")

    async def scenario() -> None:
        rig = await _ended(stumble, LIMITED, State.RETRY_PENDING, is_async=True)
        (task,) = await rig.tasks()
        error = task.history[0].error
        assert error is not None
        assert (task.history[0].outcome, error.type) == ("failed", "builtins.ValueError")
        assert "CancelledError" in error.traceback
        await rig.store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_task_knows_how_much_time_it_has(is_async: bool) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((current().time_left, current().deadline, current().created_at))

    async def look_async() -> None:
        look()

    async def scenario() -> None:
        for policy in (RunPolicy(timeout_ms=60_000), RunPolicy(hard_timeout_ms=30_000), RunPolicy(max_attempts=2)):
            rig = await _ended(look_async if is_async else look, policy, State.SUCCEEDED, is_async=is_async)
            await rig.store.close()

    asyncio.run(scenario())
    (left, deadline, created), (hard_left, _, _), (none, nowhere, _) = seen
    assert 50 < left <= 60
    assert 50 < (deadline - created).total_seconds() < 70
    assert 20 < hard_left <= 30
    assert (none, nowhere) == (None, None)


def test_the_timer_of_a_run_that_has_ended_is_stopped() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def call_later(delay: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            timer = original(delay, callback, *args, **kwargs)
            if delay == 3_600:
                timers.append(timer)
            return timer

        original, loop.call_later = loop.call_later, call_later  # type: ignore[method-assign,assignment]
        rig = Rig(lambda: None, is_async=False)
        await rig.enqueue(50, policy=RunPolicy(timeout_ms=3_600_000))
        await rig.drain()
        assert all(timer.cancelled() for timer in timers)
        await rig.store.close()

    asyncio.run(scenario())


def test_a_first_start_after_the_deadline_does_not_happen_and_a_second_one_does() -> None:
    async def scenario() -> None:
        calls: list[int] = []

        async def fail_once() -> None:
            calls.append(current().attempt)
            if len(calls) == 1:
                raise RuntimeError("again")

        rig = Rig(fail_once)
        late = RunPolicy(expires_ms=1)
        await rig.enqueue(1, policy=late)
        (task,) = await rig.tasks()
        while (await documents.schedules(rig.store, 0)).now_ms <= task.created_at_ms + 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await rig.drain(State.CANCELLED)
        (task,) = await rig.tasks()
        assert task.reason == "expired: not started within 1ms"
        assert [run.outcome for run in task.history] == ["cancelled"]
        assert calls == []
        await rig.store.close()

        rig = Rig(fail_once)
        await rig.enqueue(1, policy=RunPolicy(expires_ms=60_000, base_ms=0))
        working = asyncio.create_task(rig.fetcher.run())
        await rig.until(State.RETRY_PENDING, 1)
        await rig.store.promote((await rig.store.lead(MAINTENANCE, "tester", 60_000)).epoch)
        await rig.until(State.SUCCEEDED, 1)
        rig.fetcher.quiet()
        await working
        assert calls == [1, 2]
        await rig.store.close()

    asyncio.run(scenario())


class _Away(PassingStore):
    """Hands out tasks, and then is away."""

    settling: asyncio.Event
    away = True

    async def reserve(self, request: Reserve, settle: Any = ()) -> Reserved:
        if settle:
            await self._be_away()
        return await self.inner.reserve(request, settle)

    async def apply(self, changes: Any) -> Any:
        await self._be_away()
        return await self.inner.apply(changes)

    async def _be_away(self) -> None:
        self.settling.set()
        if self.away:
            raise StoreUnavailable("away")


def test_the_supervisor_hears_of_the_end_of_a_limited_run_before_it_is_settled() -> None:
    async def scenario() -> None:
        store = _Away(open_store("sqlite://"))
        store.settling = asyncio.Event()
        rig = Rig(lambda: None, is_async=False, store=store)
        await rig.enqueue(1)
        await rig.enqueue(2, policy=RunPolicy(hard_timeout_ms=60_000))
        working = asyncio.create_task(rig.fetcher.run())
        await store.settling.wait()
        async with asyncio.timeout(20):
            while rig.slots.running:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        told = [key for message in rig.news if isinstance(message, Ended) for key in message.keys]
        limited = [task.key for message in rig.told for task in message.add if task.hard_timeout_ms]
        assert sorted(told) == sorted(limited)
        assert len(limited) == 2
        assert {task.state for task in await rig.tasks()} == {State.CLAIMED}
        store.away = False
        await rig.until(State.SUCCEEDED, 3)
        rig.fetcher.quiet()
        await working
        await store.close()

    asyncio.run(scenario())
