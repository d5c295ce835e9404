"""`eager(app)`: every enqueue runs its task at once, in this process, as a worker would."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Again, Holdfast, Retry, Snooze, TaskFailed, current
from holdfast.core.task import State
from holdfast.errors import TimedOut, UsageError
from holdfast.testing import arun_due, assert_enqueued, eager
from holdfast.worker.child.context import RunningTask

tenant: ContextVar[str] = ContextVar("tenant", default="none")


def new_app() -> Holdfast:
    return Holdfast("redis://never.invalid:1/0")


def test_an_enqueue_runs_the_task_in_the_callers_thread_and_context_with_current() -> None:
    app, seen = new_app(), []

    @app.task(name="add", queue="sums")
    def add(a: int, b: int) -> int:
        task = current()
        seen.append((task.attempt, task.queue, task.worker_id, tenant.get(), threading.current_thread()))
        return a + b

    tenant.set("acme")
    with eager(app):
        handle = add.enqueue(1, 2)
        assert handle.result() == 3
    assert seen == [(1, "sums", "test:1", "acme", threading.current_thread())]


def test_the_error_of_a_task_is_raised_by_its_enqueue() -> None:
    app, error = new_app(), ValueError("no such cat")

    @app.task(name="fail")
    def fail() -> None:
        raise error

    with eager(app), pytest.raises(ValueError, match="no such cat") as raised:
        fail.enqueue()
    assert raised.value is error


def test_without_raises_the_retry_policy_applies_and_waiting_takes_no_time() -> None:
    app, attempts = new_app(), []

    @app.task(name="flaky", retry=Retry(max_attempts=4, base="1h", cap="1h", jitter=0))
    def flaky(good: int) -> int:
        attempts.append(current().attempt)
        if current().attempt < good:
            raise ValueError
        return good

    with eager(app, raises=False) as test:
        begun = test.now
        assert flaky.enqueue(3).result() == 3
        assert (attempts, test.now - begun) == ([1, 2, 3], timedelta(hours=2))
        handle = flaky.enqueue(9)
        assert handle.status().state is State.DEAD_LETTERED
        with pytest.raises(TaskFailed, match="4 attempts"):
            handle.result()


def test_delayed_and_snoozed_tasks_run_at_once() -> None:
    app, runs = new_app(), []

    @app.task(name="poll")
    def poll() -> str:
        runs.append(current().created_at)
        if len(runs) < 3:
            raise Snooze("10m")
        return "ready"

    with eager(app) as test:
        begun = test.now
        assert poll.using(delay="1d").enqueue().result() == "ready"
        assert test.now - begun == timedelta(days=1, minutes=20)
        assert_enqueued(poll, delay="1d")


def test_a_task_that_snoozes_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()
    monkeypatch.setattr("holdfast.testing.worker.MAX_RUNS", 5)

    @app.task(name="poll")
    def poll() -> None:
        raise Snooze("10m")

    with eager(app), pytest.raises(UsageError, match="5 attempts have run in one call, the last one of poll"):
        poll.enqueue()


@pytest.mark.parametrize("inner", ["sync", "async"])
@pytest.mark.parametrize("outer", ["sync", "async", "sync call in async"])
def test_tasks_enqueue_tasks_and_use_their_results(outer: str, inner: str) -> None:
    app = new_app()

    def double(number: int) -> int:
        return 2 * number

    async def adouble(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    child: Any = app.task(name="double")(double if inner == "sync" else adouble)

    def parent(number: int) -> Any:
        return 1 + child.enqueue(number).result()

    async def aparent(number: int) -> Any:
        if outer == "async":
            return 1 + await (await child.aenqueue(number)).aresult()
        return parent(number)

    task: Any = app.task(name="parent")(parent if outer == "sync" else aparent)
    with eager(app):
        assert task.enqueue(21).result() == 43


def test_lifespan_and_around_run_as_in_a_worker() -> None:
    app, seen = new_app(), []

    @app.lifespan
    async def life() -> AsyncIterator[dict[str, int]]:
        seen.append("opened")
        yield {"pool": 7}
        seen.append("closed")

    @app.around
    async def timed(task: RunningTask, call_next: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(f"before {task.type}")
        tenant.set("from around")
        result = await call_next()
        seen.append("after")
        return result + 1

    @app.task(name="work")
    def work() -> int:
        assert threading.current_thread() is threading.main_thread()
        seen.append(tenant.get())
        return int(current().state["pool"])

    with eager(app):
        assert work.enqueue().result() == 8
        assert work.enqueue().result() == 8
    once = ["before work", "from around", "after"]
    assert seen == ["opened", *once, *once, "closed"]


def test_enqueue_many_runs_all_in_order() -> None:
    app, seen = new_app(), []

    @app.task(name="note")
    def note(number: int) -> None:
        seen.append(number)

    with eager(app):
        app.enqueue_many(note.prepare(number) for number in range(5))
    assert seen == list(range(5))


def test_in_async_tests_coroutines_run_on_the_running_event_loop() -> None:
    app = new_app()
    seen: list[object] = []
    loops: list[asyncio.AbstractEventLoop] = []

    @app.lifespan
    async def life() -> AsyncIterator[asyncio.AbstractEventLoop]:
        yield asyncio.get_running_loop()
        seen.append("closed")

    @app.task(name="work")
    async def work() -> bool:
        return current().state is asyncio.get_running_loop() is loops[0]

    @app.task(name="plain")
    def plain() -> bool:
        return bool(current().once("step", lambda: threading.current_thread() is not threading.main_thread()))

    async def test() -> None:
        loops.append(asyncio.get_running_loop())
        async with eager(app):
            assert await (await work.aenqueue()).aresult()
            assert await (await plain.aenqueue()).aresult()
            assert await arun_due(app) == []

    asyncio.run(test())
    assert seen == ["closed"]


def test_a_lifespan_opened_by_an_async_test_closes_with_its_event_loop() -> None:
    app, seen = new_app(), []

    @app.lifespan
    async def life() -> AsyncIterator[None]:
        yield
        seen.append("closed")

    @app.task(name="work")
    async def work() -> None:
        seen.append("ran")

    async def test() -> None:
        await work.aenqueue()

    with eager(app):  # as a sync fixture does around an async test
        asyncio.run(test())
    assert seen == ["ran", "closed"]


def test_the_app_has_its_own_store_and_clock_again_after_the_block() -> None:
    app = Holdfast("sqlite://")

    @app.task(name="work")
    def work() -> None: ...

    before = work.enqueue()
    clock = app.clock
    with eager(app):
        work.enqueue()
        assert app.queues.list()[0].states[State.SUCCEEDED] == 1
    assert (app.url, app.clock) == ("sqlite://", clock)
    assert before.status().state is State.READY
    assert work.enqueue().status().state is State.READY
    app.close()


def test_what_is_meant_for_the_test_reaches_it() -> None:
    app = new_app()

    @app.task(name="fail")
    def fail() -> None:
        pytest.fail("wrong")

    with eager(app, raises=False), pytest.raises(BaseException, match="wrong") as raised:
        fail.enqueue()
    assert type(raised.value) is pytest.fail.Exception


def test_a_time_limit_is_raised_by_the_enqueue() -> None:
    app = new_app()

    @app.task(name="slow", timeout="1m")
    def slow() -> None:
        test.advance("2m")

    with eager(app) as test, pytest.raises(TimedOut, match="ran longer than its time limit of 1m"):
        slow.enqueue()


def test_the_jump_over_a_childs_delay_does_not_count_for_its_parent() -> None:
    app = new_app()

    @app.task(name="child")
    def child() -> None: ...

    @app.task(name="parent", timeout="1m")
    def parent() -> bool:
        child.using(delay="1h").enqueue()
        test.advance("30s")
        return 29 < (current().time_left or 0) <= 30 and not current().claim_lost

    with eager(app) as test:
        assert parent.enqueue().result()


def test_one_test_at_a_time() -> None:
    app = new_app()
    with eager(app) as test, pytest.raises(UsageError, match="in a test already"), eager(app):
        pass
    with pytest.raises(UsageError, match="not open"):
        test.run_due()


def test_hooks_and_sync_around_run_in_the_callers_thread() -> None:
    app, seen = new_app(), []

    @app.around
    def session(task: RunningTask, call_next: Callable[[], Any]) -> Any:
        seen.append(("around", task.type, threading.current_thread()))
        return call_next()

    @app.on_success
    def succeeded(task: RunningTask, result: Any) -> None:
        seen.append(("succeeded", result, threading.current_thread()))

    @app.on_failure
    def failed(task: RunningTask, failure: Any) -> None:
        seen.append(("failed", str(failure.error), threading.current_thread()))

    @app.task(name="work")
    def work(good: bool) -> str:
        if not good:
            raise ValueError("bad")
        return "good"

    with eager(app):
        work.enqueue(True)
        with pytest.raises(ValueError, match="bad"):
            work.enqueue(False)
    here = threading.current_thread()
    assert seen == [
        ("around", "work", here),
        ("succeeded", "good", here),
        ("around", "work", here),
        ("failed", "bad", here),
    ]


def test_the_pause_that_a_task_asks_for_takes_no_time() -> None:
    app = new_app()

    @app.task(name="work")
    def work() -> int:
        if current().attempt == 1:
            raise Again("30m")
        return current().attempt

    with eager(app, raises=False) as test:
        begun = test.now
        assert work.enqueue().result() == 2
        assert test.now - begun == timedelta(minutes=30)
