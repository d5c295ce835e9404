"""What an app declares around its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from holdfast import Cancel, Holdfast, Snooze, current
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State, Task
from holdfast.errors import BadApp, BadArguments, BadOption
from holdfast.worker.child.executors import Middleware
from holdfast.worker.child.run import Ending
from holdfast.worker.loading import opened
from tests.support import eventually, run_worker
from tests.worker.apps.surrounded import make_app
from tests.worker.helpers import in_state, outcomes
from tests.worker.rig import Rig

CallNext = Callable[[], Awaitable[Any]]


async def _done(
    function: Callable[..., Any],
    *middlewares: Middleware,
    state: State = State.SUCCEEDED,
    payload: bytes = b"{}",
    policy: RunPolicy | None = None,
) -> Task:
    is_async = asyncio.iscoroutinefunction(function)
    rig = Rig(function, is_async=is_async, middlewares=middlewares)
    await rig.enqueue(1, payload, policy or RunPolicy(base_ms=60_000))
    await rig.drain(state)
    (task,) = await rig.tasks()
    await rig.store.close()
    return task


def in_thread() -> str:
    return f"in {threading.current_thread().name.partition('-task')[0]}"


async def on_the_loop() -> str:
    return "on the loop"


async def nothing(task: Any, call_next: CallNext) -> Any:
    return await call_next()


@pytest.mark.parametrize("function", [in_thread, on_the_loop])
def test_the_first_one_is_outermost_and_each_sees_the_result(function: Callable[..., Any]) -> None:
    seen: list[str] = []

    def noting(name: str) -> Middleware:
        async def around(task: Any, call_next: CallNext) -> Any:
            seen.append(f"{name} before {task.type} {task.attempt}")
            result = await call_next()
            seen.append(f"{name} after {result}")
            return result

        return around

    task = asyncio.run(_done(function, noting("first"), noting("second")))
    result = "in holdfast" if function is in_thread else "on the loop"
    assert seen == ["first before work 1", "second before work 1", f"second after {result}", f"first after {result}"]
    assert task.result == f'"{result}"'.encode()


@pytest.mark.parametrize("function", [in_thread, on_the_loop])
def test_it_may_replace_the_result(function: Callable[..., Any]) -> None:
    async def shout(_: Any, call_next: CallNext) -> Any:
        return (await call_next()).upper()

    async def skip(_: Any, call_next: CallNext) -> Any:
        return "not called"

    assert asyncio.run(_done(function, shout)).result in (b'"IN HOLDFAST"', b'"ON THE LOOP"')
    assert asyncio.run(_done(function, skip)).result == b'"not called"'


@pytest.mark.parametrize(("said", "state"), [(Snooze("1h"), State.SCHEDULED), (Cancel("why"), State.CANCELLED)])
@pytest.mark.parametrize("how", ["returned", "raised"])
def test_it_may_snooze_and_cancel(said: Any, state: State, how: str) -> None:
    async def around(_: Any, call_next: CallNext) -> Any:
        await call_next()
        if how == "raised":
            raise said
        return said

    task = asyncio.run(_done(in_thread, around, state=state))
    assert task.reason == ("why" if state is State.CANCELLED else None)


@pytest.mark.parametrize("is_async", [True, False])
def test_it_sees_what_the_task_raises_and_may_turn_it_into_a_result(is_async: bool) -> None:
    def fail() -> None:
        raise LookupError("gone")

    async def fail_async() -> None:
        fail()

    async def forgive(_: Any, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except LookupError as error:
            return f"forgiven: {error}"

    task = asyncio.run(_done(fail_async if is_async else fail, forgive))
    assert task.result == b'"forgiven: gone"'


def test_what_a_task_raises_passes_through_with_its_traceback() -> None:
    def fail() -> None:
        raise LookupError("gone")

    task = asyncio.run(_done(fail, nothing, state=State.RETRY_PENDING))
    error = task.history[0].error
    assert error is not None
    assert error.type == "builtins.LookupError"
    assert "test_middleware.py" in error.traceback
    assert "holdfast/worker" not in error.traceback


def test_arguments_that_do_not_fit_are_seen_too_and_use_up_no_attempt() -> None:
    seen: list[BaseException] = []

    def function(width: int) -> None:
        pytest.fail("was called")

    async def around(_: Any, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            seen.append(error)
            raise

    task = asyncio.run(_done(function, around, payload=b'{"width":"wide"}', state=State.SCHEDULED))
    assert task.attempt == 0
    assert [type(error) for error in seen] == [BadArguments]


@pytest.mark.parametrize("is_async", [True, False])
def test_context_variables_of_middleware_are_those_of_the_task(is_async: bool) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")

    def look() -> str:
        assert current().type == "work"
        return tenant.get()

    async def look_async() -> str:
        return look()

    async def around(_: Any, call_next: CallNext) -> Any:
        tenant.set("acme")
        return await call_next()

    assert asyncio.run(_done(look_async if is_async else look, around)).result == b'"acme"'


@pytest.mark.parametrize("where", ["before", "inside", "after"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_time_limit_holds_for_task_and_middleware_together(where: str, is_async: bool) -> None:
    def spin() -> None:
        while where == "inside":
            pass

    async def wait() -> None:
        if where == "inside":
            await asyncio.Event().wait()

    async def around(_: Any, call_next: CallNext) -> Any:
        if where == "before":
            await asyncio.Event().wait()
        await call_next()
        if where == "after":
            await asyncio.Event().wait()

    function = wait if is_async else spin
    limit = RunPolicy(timeout_ms=50, base_ms=60_000)
    task = asyncio.run(_done(function, around, state=State.RETRY_PENDING, policy=limit))
    assert [run.outcome for run in task.history] == ["timed_out"]


def test_a_thread_ends_before_the_middleware_around_it_does() -> None:
    order: list[str] = []

    def cleans_up() -> None:
        try:
            while True:
                pass
        finally:
            order.append("task")

    async def around(_: Any, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            order.append("middleware")

    async def scenario() -> None:
        rig = Rig(cleans_up, is_async=False, middlewares=[around])
        await rig.enqueue(1)
        working = asyncio.create_task(rig.fetcher.run())
        async with asyncio.timeout(20):
            while not any(run.thread for run in rig.slots.running.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for run in rig.slots.end(list(rig.slots.running), Ending.CANCELLED):
            run.end(Ending.SHUTDOWN)
        await rig.until(State.CANCELLED, 1)
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())
    assert order == ["task", "middleware"]


@pytest.mark.parametrize("error", [StopIteration("odd"), SystemExit(3), asyncio.CancelledError()])
def test_whatever_a_thread_raises_only_fails_the_task(error: BaseException) -> None:
    def fail() -> None:
        raise error

    task = asyncio.run(_done(fail, nothing, state=State.RETRY_PENDING))
    assert [run.outcome for run in task.history] == ["failed"]


# -- wrong declarations --------------------------------------------------------------------------------------


async def too_few(task: Any) -> None: ...


def yields(task: Any, call_next: Any) -> Iterator[None]:
    yield


async def not_a_generator() -> None: ...


async def takes_something(app: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("function", [too_few, yields, 3])
def test_what_cannot_be_middleware_is_refused_when_declared(function: Any) -> None:
    with pytest.raises(BadOption, match=r"async def \w+\(task, call_next\)"):
        Holdfast("sqlite://").around(function)


@pytest.mark.parametrize("function", [not_a_generator, takes_something, 3])
def test_what_cannot_be_a_lifespan_is_refused_when_declared(function: Any) -> None:
    with pytest.raises(BadOption, match=r"async def \w+\(\): ... yield"):
        Holdfast("sqlite://").lifespan(function)


@pytest.mark.parametrize("order", ["around first", "task first"])
def test_middleware_for_threads_is_refused_around_a_coroutine(order: str) -> None:
    app = Holdfast("sqlite://")

    def surrounds(task: Any, call_next: Callable[[], Any]) -> Any:
        return call_next()

    steps: list[Callable[[], Any]] = [lambda: app.around(surrounds), lambda: app.task(name="fetch")(on_the_loop)]
    first, second = steps if order == "around first" else reversed(steps)
    first()
    with pytest.raises(
        BadOption, match=r"surrounds is a `def` and cannot surround fetch, an `async def`: .*skip_async"
    ):
        second()


def test_middleware_for_threads_may_leave_coroutines_out() -> None:
    app = Holdfast("sqlite://")
    app.task(name="fetch")(on_the_loop)

    @app.around(skip_async=True)
    def surrounds(task: Any, call_next: Callable[[], Any]) -> Any:
        return call_next()

    assert app.sync_middlewares == (surrounds,)


# -- in the thread of the task -------------------------------------------------------------------------------


@pytest.mark.parametrize("middlewares", [(), (nothing,)], ids=["alone", "inside of async middleware"])
def test_a_plain_function_surrounds_the_task_in_its_thread(middlewares: tuple[Middleware, ...]) -> None:
    app = Holdfast("sqlite://")
    seen: list[tuple[str, str, int]] = []

    def note(name: str) -> None:
        seen.append((name, current().type, threading.get_ident()))

    @app.around
    def outer(task: Any, call_next: Callable[[], Any]) -> Any:
        note("outer")
        try:
            return f"{call_next()}, from outside"
        finally:
            note("outer closes")

    @app.around
    def inner(task: Any, call_next: Callable[[], Any]) -> Any:
        note("inner")
        return call_next()

    def function(name: str) -> str:
        note("task")
        return f"hello {name}"

    async def scenario() -> Task:
        rig = Rig(function, is_async=False, middlewares=middlewares, app=app)
        await rig.enqueue(1, b'{"name":"you"}')
        await rig.drain()
        (task,) = await rig.tasks()
        await rig.store.close()
        return task

    assert asyncio.run(scenario()).result == b'"hello you, from outside"'
    assert [name for name, _, _ in seen] == ["outer", "inner", "task", "outer closes"]
    (thread,) = {thread for _, _, thread in seen}
    assert thread != threading.get_ident()


def test_a_time_limit_reaches_middleware_in_the_thread_of_the_task() -> None:
    app = Holdfast("sqlite://")
    closed: list[bool] = []

    @app.around
    def surrounds(task: Any, call_next: Callable[[], Any]) -> Any:
        try:
            return call_next()
        finally:
            closed.append(True)

    def spins() -> None:
        while True:
            pass

    async def scenario() -> Task:
        rig = Rig(spins, is_async=False, app=app)
        await rig.enqueue(1, policy=RunPolicy(timeout_ms=20, base_ms=60_000))
        await rig.drain(State.RETRY_PENDING)
        (task,) = await rig.tasks()
        await rig.store.close()
        return task

    assert [run.outcome for run in asyncio.run(scenario()).history] == ["timed_out"]
    assert closed == [True]


# -- the lifespan --------------------------------------------------------------------------------------------


class Span:
    """A context manager of either kind."""

    def __enter__(self) -> str:
        return "state"

    def __exit__(self, *_: object) -> None:
        Span.closed += 1

    closed = 0


class Unreachable:
    def __enter__(self) -> None:
        raise ConnectionError("no database")

    def __exit__(self, *_: object) -> None:
        pytest.fail("was never opened")


class AsyncSpan:
    async def __aenter__(self) -> str:
        return "state"

    async def __aexit__(self, *_: object) -> None:
        Span.closed += 1


async def async_generator() -> AsyncIterator[str]:
    yield "state"
    Span.closed += 1


def generator() -> Iterator[str]:
    yield "state"
    Span.closed += 1


ways = [async_generator, generator, Span, AsyncSpan]
ways += [contextlib.asynccontextmanager(async_generator), contextlib.contextmanager(generator)]


@pytest.mark.parametrize("function", ways)
def test_a_lifespan_can_be_written_in_every_usual_way(function: Any) -> None:
    app = Holdfast("sqlite://")
    app.lifespan(function)

    async def scenario() -> None:
        before = Span.closed
        async with opened(app) as state:
            assert (state, Span.closed) == ("state", before)
        assert Span.closed == before + 1

    asyncio.run(scenario())


def test_an_error_at_its_opening_is_one_line_and_one_at_its_closing_harms_no_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuses(reachable: bool = False) -> AsyncIterator[None]:
        if not reachable:
            raise ConnectionError("no\ndatabase")
        yield

    async def stumbles() -> AsyncIterator[None]:
        yield
        raise ConnectionError("lost")

    async def scenario() -> None:
        app = Holdfast("sqlite://")
        app.lifespan(refuses)
        with pytest.raises(BadApp, match=r"^the lifespan could not be opened: ConnectionError: no database \(.*\)$"):
            async with opened(app):
                pytest.fail("was opened")
        app = Holdfast("sqlite://")
        app.lifespan(stumbles)
        async with opened(app):
            pass

    asyncio.run(scenario())
    assert "the lifespan could not be closed" in caplog.text


def test_several_lifespans_are_opened_in_order_and_closed_in_reverse() -> None:
    app = Holdfast("sqlite://")
    seen: list[str] = []

    def span(name: str, state: Any) -> Callable[[], AsyncIterator[Any]]:
        async def lifespan() -> AsyncIterator[Any]:
            seen.append(f"open {name}")
            yield state
            seen.append(f"close {name}")
            if name == "second":
                raise ConnectionError("lost")

        return lifespan

    app.lifespan(span("first", {"pool": 1}))
    app.lifespan(span("second", None))
    app.lifespan(span("third", {"client": 2}))

    async def scenario() -> None:
        async with opened(app) as state:
            assert state == {"pool": 1, "client": 2}

    asyncio.run(scenario())
    assert seen == ["open first", "open second", "open third", "close third", "close second", "close first"]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (({"pool": 1}, "text"), "one of them a str: let each yield a dict"),
        (({"pool": 1}, {"pool": 2}), "two lifespans yield 'pool': give one of them another name"),
    ],
)
def test_lifespans_whose_states_do_not_go_together_are_refused_and_closed(
    states: tuple[Any, Any], message: str
) -> None:
    app = Holdfast("sqlite://")
    closed: list[Any] = []

    for state in states:

        @app.lifespan
        async def lifespan(state: Any = state) -> AsyncIterator[Any]:
            yield state
            closed.append(state)

    async def scenario() -> None:
        async with opened(app):
            pytest.fail("was opened")

    with pytest.raises(BadApp, match=message):
        asyncio.run(scenario())
    assert closed == list(reversed(states))


def test_what_was_open_is_closed_when_a_later_lifespan_cannot_be_opened() -> None:
    app = Holdfast("sqlite://")
    closed: list[str] = []

    @app.lifespan
    async def first() -> AsyncIterator[None]:
        yield
        closed.append("first")

    app.lifespan(Unreachable)

    async def scenario() -> None:
        async with opened(app):
            pytest.fail("was opened")

    with pytest.raises(BadApp, match="ConnectionError: no database"):
        asyncio.run(scenario())
    assert closed == ["first"]


# -- with a real worker --------------------------------------------------------------------------------------


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_worker_runs_its_tasks_inside_of_it_all(url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with (
        make_app(url) as app,
        run_worker("tests.worker.apps.surrounded:app", url, env={"HOLDFAST_TEST_NOTES": str(notes)}) as worker,
    ):
        for name in ("greets", "greets_in_thread"):
            assert app.task_types[name].enqueue().result(20) == "hello to outer, from outside"
        assert app.task_types["opened_in"].enqueue().result(20) is True
        spinning = app.task_types["spins"].enqueue()
        in_state(spinning, State.RETRY_PENDING)
        assert outcomes(spinning) == ["timed_out"]
        assert worker.stop() == 0
    written = lines(notes)
    assert (written[0], written[-1]) == ("opening", "closed")
    assert written[1:3] == ["outer greets", "inner greets"]
    assert written.count("opening") == 1


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_lifespan_that_cannot_be_opened_is_tried_again(url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    env = {"HOLDFAST_TEST_NOTES": str(notes), "HOLDFAST_TEST_BROKEN": "1"}
    with make_app(url) as app, run_worker("tests.worker.apps.surrounded:app", url, env=env) as worker:
        task = app.task_types["greets"].enqueue()
        eventually(lambda: lines(notes).count("opening") >= 2, 20)
        assert "the lifespan could not be opened: ConnectionError: no database" in worker.output()
        assert "Traceback" not in worker.output()
        assert task.status().state is State.READY
        assert worker.process.poll() is None
