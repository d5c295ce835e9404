"""How one run becomes one change."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from holdfast import Cancel, ClaimLost, Snooze, UsageError, current
from holdfast.core.lifecycle import Change, Event
from holdfast.core.policy import RunPolicy
from holdfast.worker.execute import run_coroutine, run_function
from holdfast.worker.failure import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, describe
from holdfast.worker.run import Ending, Run
from tests.worker.rig import claimed, run_of


def raises(error: BaseException) -> Any:
    def function() -> None:
        raise error

    return function


def in_its_context(run: Run) -> Change | None:
    return contextvars.copy_context().run(run_function, run)


def settled(run: Run) -> Change:
    change = in_its_context(run)
    assert change is not None
    return change


def test_a_result_is_acked() -> None:
    change = settled(run_of(lambda: {"size": 3}))
    assert (change.event, change.result) == (Event.ACK, b'{"size":3}')


@pytest.mark.parametrize("how", ["returned", "raised"])
def test_snooze_and_cancel_may_be_returned_or_raised(how: str) -> None:
    for said, event in [(Snooze("2s"), Event.SNOOZE), (Cancel("why"), Event.STOP)]:
        change = settled(run_of((lambda said=said: said) if how == "returned" else raises(said)))
        assert change.event is event
        assert (change.delay_ms, change.reason) == ((2_000, None) if event is Event.SNOOZE else (0, "why"))


def test_an_error_is_retried_until_the_attempts_are_used_up() -> None:
    first = settled(run_of(raises(RuntimeError("no"))))
    last = settled(run_of(raises(RuntimeError("no")), claimed(attempt=5)))
    assert (first.event, last.event, last.reason) == (Event.RETRY, Event.BURY, "max_attempts")


def test_errors_to_give_up_on_are_not_retried() -> None:
    task = claimed(policy=RunPolicy(give_up_on=("builtins.LookupError",)))
    change = settled(run_of(raises(KeyError("gone")), task))
    assert (change.event, change.reason) == (Event.BURY, "not_retryable")


def test_arguments_that_do_not_fit_are_not_retried() -> None:
    def function(width: int) -> None:
        raise AssertionError("must not be called")

    change = settled(run_of(function, claimed(b'{"width":"wide"}')))
    assert (change.event, change.reason) == (Event.BURY, "not_retryable")
    assert change.error is not None
    assert change.error.type == "holdfast.errors.BadArguments"
    assert "width" in change.error.message


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_even_base_exceptions_only_fail_the_task(error: BaseException) -> None:
    assert settled(run_of(raises(error))).event is Event.RETRY


@pytest.mark.parametrize(
    ("ending", "event"), [(Ending.CANCELLED, Event.STOP), (Ending.SHUTDOWN, Event.RELEASE), (Ending.LOST, None)]
)
def test_a_coroutine_that_is_ended_settles_by_the_reason(ending: Ending, event: Event | None) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def scenario(begun: bool) -> Change | None:
        run = run_of(forever, is_async=True)
        change: list[Change | None] = []

        async def note() -> None:
            change.append(await run_coroutine(run))

        run.handle = asyncio.create_task(note())
        if begun:
            await asyncio.sleep(0)
        run.end(ending)
        await run.handle
        return change[0]

    for begun in (True, False):
        change = asyncio.run(scenario(begun))
        assert (change and change.event) is event


def test_a_claim_that_is_lost_is_never_settled() -> None:
    assert in_its_context(run_of(raises(ClaimLost("gone")))) is None


def test_a_function_finds_out_that_its_claim_ran_out() -> None:
    run = run_of(lambda: current().raise_if_cancelled())
    run.deadline_ms = 0
    assert in_its_context(run) is None


def test_error_texts_are_bounded_and_can_be_stored() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise ValueError("x" * 100_000 + "\udc80")

    with pytest.raises(ValueError, match="x") as caught:
        deep(3)
    failure = describe(caught.value)
    assert len(failure.message) <= MAX_MESSAGE_CHARS
    assert len(failure.traceback) <= MAX_TRACEBACK_CHARS + 10
    failure.traceback.encode()
    assert "str() failed" in describe(Silent()).message


def test_current_outside_of_a_task_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="inside a running task"):
        current()


def test_current_tells_of_the_run() -> None:
    task = claimed(attempt=2)

    def look() -> list[Any]:
        me = current()
        return [me.task_id, me.attempt, me.max_attempts, me.fencing_token, me.queue, me.cancelled, me.claim_lost]

    run = run_of(look, task)
    change = settled(run)
    assert change.result is not None
    assert change.result.decode() == f'["{task.task_id}",2,5,1,"default",false,false]'
