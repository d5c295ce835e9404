"""How one run becomes one change."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from chaos.poison import LINKS, POISONS, _long_chain

from holdfast import Again, Cancel, ClaimLost, Snooze, UsageError, current
from holdfast.clock import SystemClock
from holdfast.core.lifecycle import Change, Event
from holdfast.core.retry import RunPolicy
from holdfast.errors import BadArguments
from holdfast.stores.open import open_store
from holdfast.worker.child.execute import run_coroutine, run_function
from holdfast.worker.child.failure import MAX_CAUSES, MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, describe
from holdfast.worker.child.run import Ending, Run, RunContext
from tests.worker.rig import claimed, plain, run_of


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
    assert (change.event, plain(change)) == (Event.ACK, b'{"size":3}')


def returns_set() -> set[int]:
    return {1}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {1},
            "returned a set, which arrives as a list: annotate what it returns (`-> set`), or return a value of JSON",
        ),
        ((1, 2), "returned a tuple, which arrives as a list: "),
        (frozenset({1}), "returned a frozenset, which arrives as a list: "),
        (b"abc", "returned a bytes, which arrives as base64 text: "),
        ([1], ""),
    ],
)
def test_a_result_that_changes_its_type_is_warned_of_once(
    value: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = run_of(lambda: value), run_of(lambda: value)
    second.type = first.type
    for run in (first, second):
        assert settled(run).event is Event.ACK
    assert [said in message for message in caplog.messages] == [True] * bool(said)
    settled(run_of(returns_set))
    assert len(caplog.messages) == bool(said)


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


@pytest.mark.parametrize("how", ["returned", "raised"])
def test_again_is_a_counted_attempt_with_its_own_delay(how: str) -> None:
    asked = Again(timedelta(seconds=3), "the other side is busy")
    function = (lambda: asked) if how == "returned" else raises(asked)
    change = settled(run_of(function))
    assert (change.event, change.outcome, change.delay_ms) == (Event.RETRY, "failed", 3_000)
    assert change.error is not None
    assert (change.error.type, change.error.message) == ("holdfast.core.task.Again", "the other side is busy")
    last = settled(run_of(function, claimed(attempt=5)))
    assert (last.event, last.reason) == (Event.BURY, "max_attempts")


def test_again_is_retried_even_where_the_policy_would_give_up_on_its_cause() -> None:
    def function() -> None:
        try:
            raise KeyError("gone for a while")
        except KeyError as error:
            raise Again("1m") from error

    policy = RunPolicy(give_up_on=("builtins.KeyError",), retry_on=("builtins.OSError",))
    change = settled(run_of(function, claimed(policy=policy)))
    assert (change.event, change.delay_ms) == (Event.RETRY, 60_000)
    assert change.error is not None
    assert (change.error.type, change.error.message) == ("builtins.KeyError", "'gone for a while'")
    assert "raise Again" in change.error.traceback


def test_again_without_a_delay_waits_for_the_backoff_of_the_policy() -> None:
    class Busy(Again):
        def __init__(self) -> None:
            pass

    policy = RunPolicy(base_ms=700, jitter=0.0)
    for asked in (Again(), Busy()):
        assert settled(run_of(raises(asked), claimed(policy=policy))).delay_ms == 700


def test_again_with_a_delay_that_cannot_be_fails_the_attempt_as_any_error() -> None:
    class Wrong(Again):
        delay_ms = -1

        def __init__(self) -> None:
            pass

    change = settled(run_of(raises(Wrong())))
    assert change.event is Event.RETRY
    assert change.error is not None
    assert "a subclass of Again must call super().__init__(delay)" in change.error.message


def test_errors_to_give_up_on_are_not_retried() -> None:
    task = claimed(policy=RunPolicy(give_up_on=("builtins.LookupError",)))
    change = settled(run_of(raises(KeyError("gone")), task))
    assert (change.event, change.reason) == (Event.BURY, "not_retryable")


@pytest.mark.parametrize("payload", [b'{"width":"wide"}', b'{"width":1,"height":2}', b"{}"])
def test_arguments_that_do_not_fit_are_retried_as_another_worker_may_have_their_signature(payload: bytes) -> None:
    def function(width: int) -> None:
        raise AssertionError("must not be called")

    task = claimed(payload, policy=RunPolicy(max_attempts=1, retry_on=("builtins.OSError",)))
    change = settled(run_of(function, task))
    assert (change.event, change.outcome) == (Event.SNOOZE, "bad_arguments")
    assert 15_000 <= change.delay_ms <= 30_000
    assert change.error is not None
    assert change.error.type == "holdfast.errors.BadArguments"
    assert "width" in change.error.message


def test_bad_arguments_of_another_task_that_a_task_enqueues_are_its_own_failure() -> None:
    change = settled(run_of(raises(BadArguments("resize(): unknown argument 'widht'")), claimed()))
    assert (change.event, change.outcome, change.reason) == (Event.BURY, "failed", "not_retryable")


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
    run.lease_ends_ms = 0
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
    assert (plain(change) or b"").decode() == f'["{task.task_id}",2,5,1,"default",false,false]'


def test_a_claim_is_lost_only_if_the_supervisor_has_said_nothing_else_meanwhile() -> None:
    async def scenario() -> None:
        context = RunContext(open_store("sqlite://"), asyncio.get_running_loop())
        now_ms = SystemClock().monotonic_ms()
        blocked, lost, silent = (run_of(lambda: None, context=context) for _ in range(3))
        blocked.lease_ends_ms = lost.lease_ends_ms = now_ms
        context.extended[0] = 1, now_ms + 60_000
        lost.lost = True
        assert not blocked.claim_lost()
        assert lost.claim_lost()
        context.extended.clear()
        silent.lease_ends_ms = now_ms
        listening = threading.Timer(0.02, lambda: context.extended.update({0: (1, now_ms + 60_000)}))
        listening.start()  # as the thread that reads what the supervisor said while the process stood still
        assert not silent.claim_lost()
        listening.join()
        context.extended.clear()
        silent.lease_ends_ms = now_ms
        assert silent.claim_lost()
        assert context.caught_up_at_ms >= now_ms
        context.process = (-1, 0)  # this one is a process that the task has forked: the supervisor tells it nothing
        assert not silent.claim_lost()
        assert lost.claim_lost()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [poison.name for poison in POISONS if poison.name.startswith(("raises_", "fails_"))])
def test_no_error_is_too_odd_to_be_described(name: str) -> None:
    (poison,) = [poison for poison in POISONS if poison.name == name]
    run = run_of(poison.function, is_async=inspect.iscoroutinefunction(poison.function))
    change = asyncio.run(run_coroutine(run)) if run.type.is_async else settled(run)
    assert change is not None
    if change.event is Event.STOP:
        return
    assert change.event is Event.RETRY
    assert change.error is not None
    assert len(change.error.message) <= MAX_MESSAGE_CHARS
    assert len(change.error.traceback) <= MAX_TRACEBACK_CHARS
    assert b"\\u0000" not in msgspec.json.encode(change.error)


def test_of_a_long_chain_the_latest_errors_are_told() -> None:
    failure = describe(_long_chain())
    assert failure.message == f"try {LINKS - 1}"
    assert f"ConnectionError: try {LINKS - MAX_CAUSES}\n" in failure.traceback
    assert failure.traceback.rstrip().endswith(f"ConnectionError: try {LINKS - 1}")
    assert f"try {LINKS - MAX_CAUSES - 1}\n" not in failure.traceback


def test_a_plain_function_that_returns_a_coroutine_is_told_how_to_await_it() -> None:
    async def inner() -> int:
        return 1

    def outer() -> Any:
        return inner()

    change = in_its_context(run_of(outer))
    assert change is not None
    assert change.error is not None
    assert change.event is Event.BURY
    assert "declare it with `async def`" in change.error.message
