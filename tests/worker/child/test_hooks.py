"""Hooks after each attempt: when they are called, with what, and that they change nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Again, BadResult, Cancel, FailedAttempt, Holdfast, RunningTask, Snooze, TimedOut, current
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State, Task
from holdfast.errors import BadOption
from holdfast.worker.child import hooks
from holdfast.worker.child.run import report_of
from tests.worker.rig import Rig

SLOW = RunPolicy(base_ms=60_000, max_attempts=2)


def make_app(*, is_async: bool = False) -> tuple[Holdfast, list[tuple[Any, ...]]]:
    """An app whose hooks note what they are called with."""
    app = Holdfast("sqlite://")
    seen: list[tuple[Any, ...]] = []

    def failed(task: RunningTask, failure: FailedAttempt) -> None:
        seen.append(("failed", task.attempt, failure, current() == task, threading.get_ident()))

    def succeeded(task: RunningTask, result: Any) -> None:
        seen.append(("succeeded", task.attempt, result, current() == task, threading.get_ident()))

    async def afailed(task: RunningTask, failure: FailedAttempt) -> None:
        failed(task, failure)

    async def asucceeded(task: RunningTask, result: Any) -> None:
        succeeded(task, result)

    app.on_failure(afailed if is_async else failed)
    app.on_success(asucceeded if is_async else succeeded)
    return app, seen


async def ended(rig: Rig, state: State, policy: RunPolicy = SLOW) -> Task:
    """The one task of a rig, as soon as it is in this state and all is settled."""
    await rig.enqueue(1, policy=policy)
    await rig.drain(state)
    (task,) = await rig.tasks()
    await rig.store.close()
    return task


async def end_of_threads(rig: Rig, release: threading.Event) -> None:
    """Lets hooks in threads end before their event loop is closed."""
    release.set()
    while rig.hooks._threads._busy:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def run(function: Callable[..., Any], app: Holdfast, state: State, policy: RunPolicy = SLOW) -> Task:
    is_async = asyncio.iscoroutinefunction(function)

    async def scenario() -> Task:
        return await ended(Rig(function, is_async=is_async, app=app), state, policy)

    return asyncio.run(scenario())


async def gives_on_the_loop() -> str:
    return "done"


def gives() -> str:
    return "done"


async def fails_on_the_loop() -> None:
    raise KeyError("gone")


def fails() -> None:
    raise KeyError("gone")


@pytest.mark.parametrize("is_async", [True, False], ids=["async hook", "sync hook"])
@pytest.mark.parametrize("function", [gives, gives_on_the_loop])
def test_a_success_calls_its_hooks_once_with_the_result(function: Callable[..., Any], is_async: bool) -> None:
    app, seen = make_app(is_async=is_async)
    assert run(function, app, State.SUCCEEDED).result == b'"done"'
    (call,) = seen
    assert call[:4] == ("succeeded", 1, "done", True)
    assert (call[4] == threading.get_ident()) is is_async


@pytest.mark.parametrize("is_async", [True, False], ids=["async hook", "sync hook"])
@pytest.mark.parametrize("function", [fails, fails_on_the_loop])
def test_a_failure_calls_its_hooks_with_the_error_and_what_follows(
    function: Callable[..., Any], is_async: bool
) -> None:
    app, seen = make_app(is_async=is_async)
    run(function, app, State.RETRY_PENDING)
    run(function, app, State.DEAD_LETTERED, RunPolicy(max_attempts=1))
    run(function, app, State.FAILED, RunPolicy(give_up_on=("builtins.KeyError",), dead_letter=False))
    failures = [failure for _, _, failure, _, _ in seen]
    assert all(isinstance(failure.error, KeyError) for failure in failures)
    assert [(failure.final, failure.reason) for failure in failures] == [
        (False, None),
        (True, "max_attempts"),
        (True, "not_retryable"),
    ]
    assert 30 <= failures[0].retry_in <= 60
    assert failures[1].retry_in is None


def test_hooks_that_are_cancelled_before_their_first_step_are_left_out_and_the_run_is_settled() -> None:
    async def scenario() -> tuple[Task, list[tuple[Any, ...]]]:
        app, seen = make_app()
        rig = Rig(gives, is_async=False, app=app)
        keep: Callable[[asyncio.Task[Any]], asyncio.Task[Any]] = rig.hooks._keep

        def cancelled(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
            task.cancel()
            return keep(task)

        rig.hooks._keep = cancelled
        return await ended(rig, State.SUCCEEDED), seen

    task, seen = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert task.result == b'"done"'
    assert seen == []


def test_what_a_hook_logs_is_kept_with_the_failed_attempt() -> None:
    app = Holdfast("sqlite://")
    app.on_failure(lambda task, failure: report_of(task._run).add(0, "warning", f"saw {failure.error!r}"))
    (attempt,) = run(fails, app, State.RETRY_PENDING).history
    assert attempt.error is not None
    assert [line.text for line in attempt.error.log] == ["saw KeyError('gone')"]


def test_again_and_results_that_do_not_fit_are_failures_with_their_causes() -> None:
    def again() -> None:
        raise Again("90s") from ConnectionError("busy")

    def unfit() -> object:
        return object()

    app, seen = make_app()
    run(again, app, State.RETRY_PENDING)
    run(lambda: Again("5s"), app, State.RETRY_PENDING)
    run(unfit, app, State.DEAD_LETTERED)
    assert isinstance(seen[0][2].error, ConnectionError)
    assert seen[0][2].retry_in == 90
    assert isinstance(seen[1][2].error, Again)
    assert isinstance(seen[2][2].error, BadResult)


async def sleeps() -> None:
    await asyncio.sleep(60)


def spins() -> None:
    while True:
        pass


@pytest.mark.parametrize("function", [sleeps, spins])
def test_a_time_limit_is_a_failure_by_timed_out(function: Callable[..., Any]) -> None:
    app, seen = make_app()
    run(function, app, State.RETRY_PENDING, RunPolicy(timeout_ms=20, base_ms=60_000))
    ((_, _, failure, _, _),) = seen
    assert isinstance(failure.error, TimedOut)
    assert not failure.final


@pytest.mark.parametrize(("asked", "state"), [(Snooze("1h"), State.SCHEDULED), (Cancel("no"), State.CANCELLED)])
def test_an_attempt_that_neither_failed_nor_succeeded_calls_no_hook(asked: Exception, state: State) -> None:
    app, seen = make_app()
    run(lambda: asked, app, state)
    assert seen == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async hook", "sync hook"])
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), asyncio.CancelledError()])
def test_an_error_in_a_hook_is_logged_and_changes_nothing(
    error: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = Holdfast("sqlite://"), []

    def broken(task: RunningTask, result: Any) -> None:
        raise error

    async def abroken(task: RunningTask, result: Any) -> None:
        raise error

    app.on_success(abroken if is_async else broken)
    app.on_success(lambda task, result: seen.append(result))
    assert run(gives, app, State.SUCCEEDED).attempt == 1
    assert seen == ["done"]
    if not (is_async and isinstance(error, asyncio.CancelledError)):
        assert "broken failed; the outcome of the task stays" in caplog.text


@pytest.mark.parametrize("is_async", [True, False], ids=["async hook", "sync hook"])
def test_a_hook_that_does_not_end_holds_up_no_settlement(
    is_async: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "HOOKS_S", 0.02)
    app, release = Holdfast("sqlite://"), threading.Event()

    def hangs(task: RunningTask, result: Any) -> None:
        release.wait(60)

    async def ahangs(task: RunningTask, result: Any) -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    app.on_success(ahangs if is_async else hangs)

    async def scenario() -> Task:
        rig = Rig(gives, is_async=False, app=app)
        task = await ended(rig, State.SUCCEEDED)
        await end_of_threads(rig, release)
        return task

    assert asyncio.run(scenario()).attempt == 1
    assert "hangs has not ended within 20ms; going on without it" in caplog.text


def test_a_worker_that_stops_settles_what_has_ended_but_for_its_hooks() -> None:
    app, called, release = Holdfast("sqlite://"), threading.Event(), threading.Event()

    @app.on_success
    def hangs(task: RunningTask, result: Any) -> None:
        called.set()
        release.wait(60)

    async def scenario() -> Task:
        rig = Rig(gives, is_async=False, app=app)
        await rig.enqueue(1)
        working = asyncio.create_task(rig.fetcher.run())
        await asyncio.to_thread(called.wait, 30)
        rig.fetcher.leave()
        rig.slots.abandon()
        assert rig.slots.left == []
        await asyncio.wait_for(working, 10)
        (task,) = await rig.tasks()
        await end_of_threads(rig, release)
        await rig.store.close()
        return task

    assert asyncio.run(scenario()).state is State.SUCCEEDED


def test_what_cannot_be_a_hook_is_refused_when_declared() -> None:
    app = Holdfast("sqlite://")
    for wrong in (lambda task: None, 3):
        with pytest.raises(BadOption, match=r"@app.on_failure: .* must be written as: def .*\(task, failure\)"):
            app.on_failure(wrong)  # type: ignore[type-var]
        with pytest.raises(BadOption, match=r"@app.on_success: .* must be written as: def .*\(task, result\)"):
            app.on_success(wrong)  # type: ignore[type-var]
