"""Runs one task: decode, call, conclude; every error becomes a change, never an exception.

No store call is made here. A run ends with the `Change` to settle, or None when nothing may be settled.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic_ns
from typing import Any

import msgspec

from holdfast.core import lifecycle
from holdfast.core.arguments import unfit_result
from holdfast.core.durations import format_ms
from holdfast.core.ids import fencing_token
from holdfast.core.lifecycle import Change
from holdfast.core.retry import DEFAULT_POLICY, error_names
from holdfast.core.task import OUTCOMES, Again, Cancel, Claimed, Failure, LogLine, Snooze
from holdfast.errors import (
    BadArguments,
    BadResult,
    ClaimLost,
    NotGenuine,
    PayloadTooDeep,
    PayloadTooLarge,
    TimedOut,
    UnknownKey,
)
from holdfast.runtime.forks import generation
from holdfast.runtime.interrupts import this_thread
from holdfast.worker.child.context import current_run
from holdfast.worker.child.copies import end_copy
from holdfast.worker.child.failure import describe, describe_timeout, name_of
from holdfast.worker.child.interrupt import Interruption
from holdfast.worker.child.run import Ending, Run, TimeLimit, encoded_result, opened_arguments
from holdfast.worker.child.transaction import leave_open_block, note_error, note_return

_log = logging.getLogger("holdfast.worker")
_NOTHING: Any = object()

#: Calls a function with arguments inside of the middleware that is for threads.
Surround = Callable[..., Any]

#: Also of a step whose effect has happened, and would happen again with every retry.
_NOT_RETRYABLE = (BadArguments, BadResult, NotGenuine, PayloadTooDeep, PayloadTooLarge)


class Unfit(Exception):
    """The result does not fit: the cause says how, and a retry would not help."""


async def run_coroutine(run: Run) -> Change | None:
    """Runs an `async def` task on the event loop."""
    try:
        _begin(run)
        args, kwargs = decode(run)
        value = await run.type.function(*args, **kwargs)
        if generation():
            end_copy(run)
        return _conclude(run, value)
    except BaseException as error:  # noqa: BLE001  (SystemExit too is the task's failure, not the worker's)
        return _explain(run, error)


def run_function(run: Run, surround: Surround | None = None) -> Change | None:
    """Runs a `def` task in the thread that calls this."""
    try:
        _begin(run)
        args, kwargs = decode(run)
        return _conclude(run, call_function(run, args, kwargs, surround))
    except BaseException as error:  # noqa: BLE001
        return _explain(run, error)


async def run_in_middleware(run: Run, call: Callable[[Run], Awaitable[Any]]) -> Change | None:
    """Runs a task by this call, which runs it inside the middleware of the app."""
    try:
        _begin(run)
        value = await call(run)
        if generation():
            end_copy(run)
        return _conclude(run, value)
    except BaseException as error:  # noqa: BLE001
        return _explain(run, error)


# -- the steps -----------------------------------------------------------------------------------------------


def _begin(run: Run) -> None:
    current_run.set(run)
    run.started = True
    if run.ending is not None:
        run.raise_if_ending()
    if run.task.policy is not DEFAULT_POLICY:
        _begin_limits(run)


def decode(run: Run) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the function takes them.

    Arguments that do not fit are retried, whatever the policy says: while a deploy is under way, the next worker may
    be the one that has the signature they were made for.
    """
    try:
        return run.type.codec.decode(opened_arguments(run))
    except BadArguments as error:
        error.retryable = True
        raise
    except (NotGenuine, UnknownKey):
        raise
    except Exception as error:  # of a type that makes something of its arguments
        misfit = BadArguments(f"{run.task.type}(): {type(error).__name__}: {error}")
        misfit.retryable = True
        raise misfit from error


def call_function(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], surround: Surround | None = None) -> Any:
    """What the function of a `def` task gives in this thread, inside of its middleware; it can be interrupted."""
    function = run.type.function
    try:
        result = _interruptible(run, function if surround is None else partial(surround, function), args, kwargs)
        if generation():
            end_copy(run)
        return result
    except BaseException as error:
        end_copy(run, error)
        raise
    finally:
        if run.transaction is not None:
            leave_open_block(run)


def _interruptible(run: Run, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function gives; meanwhile the run can be ended from outside, and afterwards it cannot.

    A result that is there when the exception comes is given: then the function was faster.
    """
    result = _NOTHING
    interruption = Interruption()
    try:
        try:
            this_thread.interruption = run.thread = interruption
            if run.ending is not None:
                run.raise_if_ending()  # it was asked to end before there was a thread to raise in
            result = function(*args, **kwargs)
        finally:
            interruption.close()
    except BaseException:
        interruption.close()
        if result is _NOTHING:
            raise
    return result


def _conclude(run: Run, value: Any) -> Change | None:
    run.returned_at_ns = monotonic_ns()
    task = run.task
    if run.transaction is not None and run.transaction.committed:
        run.value = value
        note_return(run, run.transaction.result, value)
        return None
    if isinstance(value, Snooze):
        return lifecycle.snooze(task.task_id, task.token, getattr(value, "delay_ms", -1))
    if isinstance(value, Again):
        return _again(run, value)
    if isinstance(value, Cancel):
        return lifecycle.stop(task.task_id, task.token, value.reason)
    try:
        result = encoded_result(run, value)
    except Exception as error:  # noqa: BLE001  (raised with its reason)
        raise Unfit from unfit_result(value, f"{task.type}()", error)
    run.value = value
    return lifecycle.ack(task.task_id, task.token, result)


def _explain(run: Run, error: BaseException) -> Change | None:
    """What becomes of a run that raised; never raises itself, whatever the error's own class does."""
    end_copy(run, error)
    run.returned_at_ns = monotonic_ns()
    if run.context is not None and run.context.keeps_errors:
        run.error = error
    try:
        return _change_after(run, error)
    except BaseException as broken:  # noqa: BLE001  (it came out of user code again)
        return unexplained(run, broken)


def unexplained(run: Run, error: BaseException) -> Change | None:
    """The end of a run of which only this is known; None if it has succeeded with its transaction."""
    _log.error("task %s: its end could not be worked out: %s", run.task.task_id, name_of(error))
    if run.settled:
        return None
    return _failed(run, error, retryable=True)


def hung(run: Run, after_ms: int) -> Change | None:
    """The end of a run that hangs after its function has returned; None if it has succeeded with its transaction."""
    task = run.task
    if run.settled:
        return None
    what = f"the function returned, but its result or error could not be read within {format_ms(after_ms)}"
    if not run.returned_at_ns:
        what = "its asyncio task was cancelled before the function was called"
    return lifecycle.fail(
        task.task_id,
        task.token,
        Failure("hung_after_return", what, log=_log_of(run)),
        attempt=task.attempt,
        policy=task.policy,
        retryable=True,
        random_unit=random.random(),  # noqa: S311  (jitter)
    )


def _change_after(run: Run, error: BaseException) -> Change | None:
    if run.settled:
        note_error(run, error)
        return None
    if isinstance(error, OUTCOMES):
        return _conclude(run, error)
    if isinstance(error, ClaimLost):
        return None
    if isinstance(error, (asyncio.CancelledError, TimedOut)) and run.ending is not None:
        return _ended_early(run, error)
    return _attempt_failed(run, error)


def _attempt_failed(run: Run, error: BaseException) -> Change:
    if isinstance(error, Unfit):
        return _failed(run, error.__cause__ or error, retryable=False)
    if isinstance(error, BadArguments) and error.retryable:
        return _unfit(run, error)
    return _failed(run, error, retryable=_may_help(run, error))


def _may_help(run: Run, error: BaseException) -> bool:
    """Whether to try again after this error."""
    if isinstance(error, _NOT_RETRYABLE):
        return False
    return run.task.policy.worth_retrying(error_names(error))


def _ended_early(run: Run, error: BaseException) -> Change | None:
    task = run.task
    match run.ending:
        case Ending.SHUTDOWN:
            return lifecycle.release(task.task_id, task.token)
        case Ending.CANCELLED:
            return lifecycle.stop(task.task_id, task.token)
        case Ending.TIMED_OUT:
            return _timed_out(run, error)
    return None


def _timed_out(run: Run, error: BaseException) -> Change:
    task = run.task
    return lifecycle.time_out(
        task.task_id,
        task.token,
        describe_timeout(error, task.policy.timeout_ms or 0, _log_of(run)),
        attempt=task.attempt,
        policy=task.policy,
        random_unit=random.random(),  # noqa: S311  (jitter)
    )


def _unfit(run: Run, error: BadArguments) -> Change:
    """Arguments that another worker may understand: see `decode`."""
    task = run.task
    failure = describe(error, _log_of(run))
    if error.__cause__ is None:
        failure = msgspec.structs.replace(failure, traceback="")  # no code of the user's is in it
    return lifecycle.unfit(
        task.task_id,
        task.token,
        failure,
        attempt=task.attempt,
        policy=task.policy,
        random_unit=random.random(),  # noqa: S311  (jitter)
    )


def _again(run: Run, error: Again) -> Change:
    """A failed attempt that is retried whatever the policy says of its error, after its own delay."""
    if run.context is not None and run.context.keeps_errors:
        run.error = error
    delay_ms = error.delay_ms
    if delay_ms is not None:
        delay_ms = lifecycle.checked_delay_ms(delay_ms, "Again")
    return _failed(run, error, retryable=True, retry_in_ms=delay_ms)


def _failed(run: Run, error: BaseException, *, retryable: bool, retry_in_ms: int | None = None) -> Change:
    task = run.task
    return lifecycle.fail(
        task.task_id,
        task.token,
        describe(error, _log_of(run)),
        attempt=task.attempt,
        policy=task.policy,
        retryable=retryable,
        random_unit=random.random(),  # noqa: S311  (jitter)
        retry_in_ms=retry_in_ms,
    )


def _log_of(run: Run) -> tuple[LogLine, ...]:
    return () if run.report is None else run.report.log()


# -- the time that a run has -----------------------------------------------------------------------------------


def _begin_limits(run: Run) -> None:
    """Starts the time of a run that has a limit; one that comes too late for its first start is not to start."""
    policy = run.task.policy
    _refuse_expired(run.task)
    limit_ms = policy.timeout_ms or policy.hard_timeout_ms
    if limit_ms is None:
        return
    run.limit = TimeLimit(run.clock.monotonic_ms() + limit_ms, run.clock.now_ms() + limit_ms)
    if run.context is not None and policy.timeout_ms is not None:
        loop = run.context.loop
        loop.call_soon_threadsafe(_arm, run, run.limit, loop, policy.timeout_ms / 1000)


def _arm(run: Run, limit: TimeLimit, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    if not limit.over:
        limit.timer = loop.call_later(seconds, _time_out, run)


def _time_out(run: Run) -> None:
    if run.ending is None:
        run.end(Ending.TIMED_OUT)


def _refuse_expired(task: Claimed) -> None:
    """By the store's clock alone: what is claimed in time is begun, however long the way here was."""
    expires_ms = task.policy.expires_ms
    if expires_ms is None or fencing_token(task.token) > 1:
        return
    if task.created_at_ms + expires_ms <= task.claimed_at_ms:
        raise Cancel(f"expired: not started within {format_ms(expires_ms)}")
