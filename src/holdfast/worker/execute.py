"""Runs one task: decode, call, conclude; whatever goes wrong becomes a change, never an exception.

No store call is made here. A run ends with the `Change` to settle, or None when nothing may be settled.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.core.policy import DEFAULT_POLICY
from holdfast.core.progress import LogLine
from holdfast.core.retry import error_names
from holdfast.errors import (
    BadArguments,
    ClaimLost,
    NotGenuine,
    PayloadTooDeep,
    PayloadTooLarge,
    TimedOut,
    UnknownKey,
)
from holdfast.worker.context import current_run
from holdfast.worker.failure import describe, describe_timeout
from holdfast.worker.interruption import interruptible
from holdfast.worker.run import Ending, Run
from holdfast.worker.seals import encoded_result, opened_arguments
from holdfast.worker.time_limit import begin_limits
from holdfast.worker.transaction import note_error, note_return

_NULL = b"null"
#: Also of a step whose effect has happened, and would happen again with every retry.
_NOT_MENDABLE = (BadArguments, NotGenuine, PayloadTooDeep, PayloadTooLarge)


class _Unfit(Exception):
    """The result does not fit: the cause says how, and a retry would not mend it."""


async def run_coroutine(run: Run) -> Change | None:
    """Runs an `async def` task on the event loop."""
    try:
        _begin(run)
        args, kwargs = decode(run)
        return _conclude(run, await run.type.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001  (SystemExit too is the task's failure, not the worker's)
        return _explain(run, error)


def run_function(run: Run) -> Change | None:
    """Runs a `def` task in the thread that calls this."""
    try:
        _begin(run)
        args, kwargs = decode(run)
        return _conclude(run, call_function(run, args, kwargs))
    except BaseException as error:  # noqa: BLE001
        return _explain(run, error)


async def run_surrounded(run: Run, call: Callable[[Run], Awaitable[Any]]) -> Change | None:
    """Runs a task by this call, which surrounds it with what the app has declared."""
    try:
        _begin(run)
        return _conclude(run, await call(run))
    except BaseException as error:  # noqa: BLE001
        return _explain(run, error)


# -- the steps -----------------------------------------------------------------------------------------------


def _begin(run: Run) -> None:
    current_run.set(run)
    run.started = True
    if run.ending is not None:
        run.raise_if_ending()
    if run.task.policy is not DEFAULT_POLICY:
        begin_limits(run)


def decode(run: Run) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the function takes them."""
    try:
        return run.type.codec.decode(opened_arguments(run))
    except (BadArguments, NotGenuine, UnknownKey):
        raise
    except Exception as error:  # of a type that makes something of its arguments
        raise BadArguments(f"{run.task.type}(): {type(error).__name__}: {error}") from error


def call_function(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function of a `def` task gives in this thread; it can be interrupted."""
    try:
        return interruptible(run, run.type.function, args, kwargs)
    finally:
        if run.transaction is not None:
            run.transaction.leave()


def _conclude(run: Run, value: Any) -> Change | None:
    task = run.task
    if run.transaction is not None and run.transaction.committed:
        note_return(run, run.transaction, value)
        return None
    if value is None:
        return lifecycle.ack(task.task_id, task.token, _NULL)
    if isinstance(value, Snooze):
        return lifecycle.snooze(task.task_id, task.token, value.delay_ms)
    if isinstance(value, Cancel):
        return lifecycle.stop(task.task_id, task.token, value.reason)
    try:
        result = encoded_result(run, value)
    except Exception as error:
        raise _Unfit from error
    return lifecycle.ack(task.task_id, task.token, result)


def _explain(run: Run, error: BaseException) -> Change | None:
    if run.transaction is not None and run.transaction.committed:
        note_error(run, error)
        return None
    if isinstance(error, (Snooze, Cancel)):
        return _conclude(run, error)
    if isinstance(error, ClaimLost):
        return None
    if isinstance(error, (asyncio.CancelledError, TimedOut)) and run.ending is not None:
        return _ended_early(run, error)
    if isinstance(error, _Unfit):
        return _failed(run, error.__cause__ or error, retryable=False)
    mendable = not isinstance(error, _NOT_MENDABLE)
    return _failed(run, error, retryable=mendable and run.task.policy.worth_retrying(error_names(error)))


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


def _failed(run: Run, error: BaseException, *, retryable: bool) -> Change:
    task = run.task
    return lifecycle.fail(
        task.task_id,
        task.token,
        describe(error, _log_of(run)),
        attempt=task.attempt,
        policy=task.policy,
        retryable=retryable,
        random_unit=random.random(),  # noqa: S311  (jitter)
    )


def _log_of(run: Run) -> tuple[LogLine, ...]:
    return () if run.report is None else run.report.log()
