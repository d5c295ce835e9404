"""Runs one task: decode, call, conclude; whatever goes wrong becomes a change, never an exception.

No store call is made here. A run ends with the `Change` to settle, or None when nothing may be settled.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from typing import Any

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.core.retry import error_name, error_names
from holdfast.core.task import Failure
from holdfast.errors import BadArguments, ClaimLost, PayloadTooDeep, PayloadTooLarge
from holdfast.worker.context import current_run
from holdfast.worker.run import Ending, Run
from holdfast.worker.transaction import note_error, note_return

MAX_MESSAGE_CHARS = 4 * 1024
MAX_TRACEBACK_CHARS = 16 * 1024

_NULL = b"null"
#: Also of a step whose effect has happened, and would happen again with every retry.
_NOT_MENDABLE = (BadArguments, PayloadTooDeep, PayloadTooLarge)


class _Unfit(Exception):
    """The arguments or the result do not fit: the cause says how, and a retry would not mend it."""


async def run_coroutine(run: Run) -> Change | None:
    """Runs an `async def` task on the event loop."""
    current_run.set(run)
    run.started = True
    try:
        if run.ending is not None:
            return _ended_early(run)
        args, kwargs = _decode(run)
        return _conclude(run, await run.type.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001  (SystemExit too is the task's failure, not the worker's)
        return _explain(run, error)


def run_function(run: Run) -> Change | None:
    """Runs a `def` task in the thread that calls this."""
    current_run.set(run)
    run.started = True
    try:
        if run.ending is not None:
            return _ended_early(run)
        args, kwargs = _decode(run)
        return _conclude(run, run.type.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001
        return _explain(run, error)


# -- the steps -----------------------------------------------------------------------------------------------


def _decode(run: Run) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return run.type.codec.decode(run.task.payload)
    except Exception as error:
        raise _Unfit from error


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
        result = run.type.codec.encode_result(value)
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
    if isinstance(error, asyncio.CancelledError) and run.ending is not None:
        return _ended_early(run)
    if isinstance(error, _Unfit):
        return _failed(run, error.__cause__ or error, retryable=False)
    mendable = not isinstance(error, _NOT_MENDABLE)
    return _failed(run, error, retryable=mendable and run.task.policy.worth_retrying(error_names(error)))


def _ended_early(run: Run) -> Change | None:
    task = run.task
    if run.ending is Ending.SHUTDOWN:
        return lifecycle.release(task.task_id, task.token)
    if run.ending is Ending.CANCELLED:
        return lifecycle.stop(task.task_id, task.token)
    return None


def _failed(run: Run, error: BaseException, *, retryable: bool) -> Change:
    task = run.task
    return lifecycle.fail(
        task.task_id,
        task.token,
        describe(error),
        attempt=task.attempt,
        policy=task.policy,
        retryable=retryable,
        random_unit=random.random(),  # noqa: S311  (jitter)
    )


def describe(error: BaseException) -> Failure:
    """The error as bounded text, without the frames of the worker and without local variables."""
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001  (an exception's own __str__ may fail)
        message = f"<str() failed: {type(broken).__name__}>"
    return Failure(error_name(type(error)), _storable(message[:MAX_MESSAGE_CHARS]), _storable(_traceback(error)))


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    return "…\n" + text[-MAX_TRACEBACK_CHARS + 2 :]  # the end tells most


def _storable(text: str) -> str:
    """Lone surrogates cannot be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
