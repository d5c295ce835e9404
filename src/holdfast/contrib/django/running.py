"""Django tasks inside of a worker: their context and signals, and database connections that are not too old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries
from django.utils import timezone

from holdfast.contrib.django.compat import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from holdfast.contrib.django.results import as_called, moment, new_result, note, result_of
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.core.retry import error_name, error_names
from holdfast.core.tokens import fencing_token
from holdfast.errors import BadArguments, ClaimLost, PayloadTooDeep, PayloadTooLarge, TimedOut
from holdfast.shield import shielded
from holdfast.worker.context import current_run
from holdfast.worker.run import Ending, Run

if TYPE_CHECKING:
    from holdfast.contrib.django.known_tasks import KnownTasks


def runner(known: KnownTasks, task: Any) -> Callable[..., Any]:
    """The function that a worker runs for a task."""

    def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
        with shielded():
            _tidy_connections()
        try:
            return _run(_Attempt(known, task, args, kwargs))
        finally:
            with shielded():
                _tidy_connections()

    async def arun(args: list[Any], kwargs: dict[str, Any]) -> Any:
        # In the one thread that the async face of the ORM has its connections in.
        await sync_to_async(_tidy_connections)()
        try:
            return await _arun(_Attempt(known, task, args, kwargs))
        finally:
            await sync_to_async(_tidy_connections)()

    return arun if iscoroutinefunction(task.func) else run


def _run(attempt: _Attempt) -> Any:
    with shielded():
        if attempt.is_repeated:
            attempt.recall(attempt.handle.status())
        task_started.send_robust(attempt.sender, task_result=attempt.result)
    try:
        value = attempt.succeed(attempt.task.func(*attempt.args, **attempt.kwargs))
    except BaseException as error:
        if attempt.fail(error):
            with shielded():
                task_finished.send_robust(attempt.sender, task_result=attempt.result)
        raise
    if attempt.has_ended:
        with shielded():
            task_finished.send_robust(attempt.sender, task_result=attempt.result)
    return value


async def _arun(attempt: _Attempt) -> Any:
    if attempt.is_repeated:
        attempt.recall(await attempt.handle.astatus())
    await task_started.asend_robust(attempt.sender, task_result=attempt.result)
    try:
        value = attempt.succeed(await attempt.task.func(*attempt.args, **attempt.kwargs))
    except BaseException as error:
        if attempt.fail(error):
            await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
        raise
    if attempt.has_ended:
        await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
    return value


class _Attempt:
    """One run of a task, and the result of it as Django sees it."""

    def __init__(self, known: KnownTasks, task: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self._run: Run = current_run.get()
        self._known = known
        claimed = self._run.task
        self.task = task
        self.sender = type(task_backends[known.alias])
        self.handle = known.app.handle(claimed.task_id)
        now = timezone.now()
        self.result = new_result(
            as_called(task, known.alias, claimed.queue, claimed.priority, claimed.headers),
            known.alias,
            args,
            kwargs,
            id=claimed.task_id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=moment(claimed.created_at_ms),
            started_at=now,
            last_attempted_at=now,
            worker_ids=[self._run.at_work("a Django task").worker_id],
        )
        self.kwargs = kwargs
        self._given = args

    @property
    def args(self) -> list[Any]:
        """With the context in front, if the task takes it."""
        return [TaskContext(task_result=self.result), *self._given] if self.task.takes_context else self._given

    @property
    def is_repeated(self) -> bool:
        """Whether there are earlier runs to know of."""
        return fencing_token(self._run.task.token) > 1

    @property
    def has_ended(self) -> bool:
        """Whether this was the last run, as far as this process can tell."""
        return bool(self.result.is_finished)

    def recall(self, record: Any) -> None:
        """Takes over what the store knows of earlier runs."""
        known = result_of(self.task, self._known.alias, record, self._known.type_of(self.task))
        note(
            self.result,
            started_at=known.started_at,
            last_attempted_at=known.last_attempted_at,
            errors=known.errors,
            worker_ids=known.worker_ids,
        )

    def succeed(self, value: Any) -> Any:
        """What the worker gets: JSON, or the wish to run later or never again."""
        if isinstance(value, (Snooze, Cancel)):
            return value
        try:
            value = normalize_json(value)
        except (TypeError, ValueError) as error:  # a repeat would give the same
            raise BadArguments(f"{self.task.module_path}(): the result cannot be JSON: {error}") from error
        note(self.result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        return value

    def fail(self, error: BaseException) -> bool:
        """Notes the error; whether it is the end of the task."""
        if isinstance(error, (Snooze, Cancel, ClaimLost)):
            return False
        told = TaskError(exception_class_path=error_name(type(error)), traceback="".join(format_exception(error)))
        self.result.errors.append(told)
        if not self._is_final(error):
            return False
        note(self.result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        return True

    def _is_final(self, error: BaseException) -> bool:
        run = self._run
        if isinstance(error, (asyncio.CancelledError, TimedOut)) and run.ending is not None:
            used_up = run.ending is Ending.TIMED_OUT and run.task.attempt >= run.task.policy.max_attempts
            return run.ending is Ending.CANCELLED or used_up
        if isinstance(error, (BadArguments, PayloadTooDeep, PayloadTooLarge)):
            return True
        policy = run.task.policy
        return run.task.attempt >= policy.max_attempts or not policy.worth_retrying(error_names(error))


def _tidy_connections() -> None:
    reset_queries()
    close_old_connections()
