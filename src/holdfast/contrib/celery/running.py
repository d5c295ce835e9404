"""Runs tasks as Celery does, in a worker and eagerly: handlers and signals around the body, in the same thread."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.contrib.celery import signals, states
from holdfast.contrib.celery.app.task import MAX_CRASHES, Request, Task, running
from holdfast.contrib.celery.exceptions import Ignore, Retry, TimeLimitExceeded, WorkerLostError
from holdfast.contrib.celery.messages import ID_HEADER, RETRIES_HEADER, caller_headers, marked, unmarked
from holdfast.contrib.celery.result import EagerResult
from holdfast.contrib.celery.utils import uuid
from holdfast.core.lifecycle import UNFIT
from holdfast.core.task import Attempt, Cancel, Snooze
from holdfast.errors import HoldfastError, TimedOut
from holdfast.runtime.interrupts import shielded
from holdfast.worker.child.context import RunningTask, current

_log = logging.getLogger(__name__)
#: How runs end that do not lose their process: the first is a retry, the others use up no attempt.
_NOT_LOST: Final = frozenset({"failed", "released", "snoozed", UNFIT})


class ExceptionInfo:
    """`einfo`: an exception with its traceback as text."""

    def __init__(self, error: BaseException) -> None:
        from traceback import format_exception

        self.type = type(error)
        self.exception = error
        self.tb = error.__traceback__
        self.traceback = "".join(format_exception(error))

    def __str__(self) -> str:
        return self.traceback


def runner(task: Task) -> Callable[[list[Any], dict[str, Any]], Any]:
    """The function that a worker runs for a task; its arguments and its result are Celery's JSON."""

    def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
        run = current()
        request = _request_of(task, run, tuple(unmarked(args)), unmarked(kwargs))
        with _connections():
            return marked(_trace(task, request))

    return run


def _request_of(task: Task, run: RunningTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
    headers = run.headers
    own_id = headers.get(ID_HEADER, run.task_id)
    request = Request(
        task=task.name,
        id=own_id,
        args=args,
        kwargs=kwargs,
        retries=int(headers.get(RETRIES_HEADER, 0)),
        headers=caller_headers(headers),
        delivery_info={"routing_key": run.queue, "exchange": "", "redelivered": run.fencing_token > 1},
        timelimit=(task.time_limit, task.soft_time_limit),
        called_directly=False,
        hostname=run.worker_id,
        root_id=own_id,
        correlation_id=own_id,
    )
    if run.attempt > 1:
        _add_earlier(task, request, run)
    return request


def _add_earlier(task: Task, request: Request, run: RunningTask) -> None:
    """Counts the retries of earlier runs; a task that was killed at its limit, or too often, does not run again."""
    try:
        history: tuple[Attempt, ...] = task.app.handle(run.task_id).history()
    except HoldfastError as error:  # a run goes on without it rather than fail
        _log.warning(
            "%s[%s]: lost runs count as retries, earlier runs cannot be read: %s", task.name, request.id, error
        )
        history = ()
    lost = [each for each in history if each.outcome not in _NOT_LOST]
    request.retries += max(0, run.attempt - 1 - len(lost))
    if any(each.outcome == "timed_out" for each in lost):
        raise TimeLimitExceeded(f"{task.name}[{request.id}] was killed at its time limit of {task.time_limit} s")
    if len(lost) >= MAX_CRASHES:
        raise WorkerLostError(f"{task.name}[{request.id}] has lost its worker process {len(lost)} times")


def _trace(task: Task, request: Request) -> Any:
    """Runs the body between its handlers; raises what the body raised."""
    token = running.set((*running.get(), (task, request)))
    state, value, info = states.SUCCESS, None, None
    arguments = (request.id or "", request.args, request.kwargs)
    try:
        with shielded():
            _send(signals.task_prerun, task, request)
            task.before_start(*arguments)
        value = _body(task, request)
        with shielded():
            task.on_success(value, *arguments)
            signals.task_success.send(task, result=value)
        return value
    except BaseException as error:
        state, value, info = _state_after(error), error, ExceptionInfo(error)
        with shielded():
            _tell(task, request, state, error, info)
        raise
    finally:
        with shielded():
            task.after_return(state, value, *arguments, info)
            _send(signals.task_postrun, task, request, retval=value, state=state)
        running.reset(token)


def _body(task: Task, request: Request) -> Any:
    try:
        return task(*request.args, **request.kwargs)
    except TimedOut as error:
        raise TimeLimitExceeded(f"soft time limit of {task.soft_time_limit} s exceeded") from error
    except Exception as error:
        task.retry_automatically(error)
        raise


def _state_after(error: BaseException) -> str:
    if isinstance(error, (Retry, Snooze)):
        return states.RETRY
    return states.REVOKED if isinstance(error, (Ignore, Cancel)) else states.FAILURE


def _tell(task: Task, request: Request, state: str, error: BaseException, info: ExceptionInfo) -> None:
    arguments = (request.id or "", request.args, request.kwargs, info)
    if state == states.RETRY:
        task.on_retry(getattr(error, "exc", None) or error, *arguments)
        signals.task_retry.send(task, request=request, reason=error, einfo=info)
    elif state == states.FAILURE:
        task.on_failure(error, *arguments)
        _send(signals.task_failure, task, request, exception=error, traceback=error.__traceback__, einfo=info)


def _send(signal: signals.Signal, task: Task, request: Request, **more: Any) -> None:
    if signal.receivers:
        signal.send(task, task_id=request.id, task=task, args=request.args, kwargs=request.kwargs, **more)


@contextmanager
def _connections() -> Iterator[None]:
    """Closes connections of Django that are too old, before and after a run."""
    database, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    if database is None or conf is None or not conf.settings.configured:  # imported by a library, not used
        yield
        return
    with shielded():
        _tidy(database)
    try:
        yield
    finally:
        with shielded():
            _tidy(database)


def _tidy(database: Any) -> None:
    database.reset_queries()
    database.close_old_connections()


# -- eagerly -------------------------------------------------------------------------------------------------


def run_eagerly(
    task: Task,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str | None,
    throw: bool,
    options: Mapping[str, Any],
) -> EagerResult:
    """Runs a task in this process until it needs no retry; `throw` raises what it raised."""
    own_id = task_id or uuid()
    retries = 0
    while True:
        request = Request(
            task=task.name,
            id=own_id,
            args=args,
            kwargs=kwargs,
            retries=retries,
            headers=dict(options.get("headers") or {}),
            delivery_info={"is_eager": True, "exchange": options.get("exchange"), "routing_key": options.get("queue")},
            is_eager=True,
            called_directly=False,
            root_id=own_id,
            correlation_id=own_id,
        )
        try:
            return EagerResult(own_id, _trace(task, request), states.SUCCESS, name=task.name)
        except Retry:
            retries += 1
        except Exception as error:
            if throw:
                raise
            state = _state_after(error)
            return EagerResult(own_id, error, state, traceback=str(ExceptionInfo(error)), name=task.name)
