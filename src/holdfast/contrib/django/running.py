"""Django tasks inside of a worker: their context and signals, and database connections that are not too old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries
from django.utils import timezone

from holdfast.contrib.django.arguments import as_given, positional, with_signature_of
from holdfast.contrib.django.compat import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from holdfast.contrib.django.results import as_called, moment, new_result, note, runs_of
from holdfast.core.ids import fencing_token
from holdfast.core.retry import error_name, error_names
from holdfast.core.task import Again, Cancel, Snooze
from holdfast.errors import BadArguments, BadResult, ClaimLost, HoldfastError, PayloadTooDeep, PayloadTooLarge, TimedOut
from holdfast.runtime.interrupts import shielded
from holdfast.worker.child.context import current_run
from holdfast.worker.child.failure import cause_of, describe
from holdfast.worker.child.run import Ending, Run

if TYPE_CHECKING:
    from holdfast.contrib.django.known_tasks import KnownTasks

_log = logging.getLogger(__name__)


def runner(known: KnownTasks, task: Any) -> Callable[..., Any]:
    """The function that a worker runs for a task."""
    tidy = _leave_connections if known.in_tests else _tidy_connections

    def run(*args: Any, **kwargs: Any) -> Any:
        with shielded():
            tidy()
        try:
            return _run(_Attempt(known, task, args, kwargs))
        finally:
            with shielded():
                tidy()

    async def arun(*args: Any, **kwargs: Any) -> Any:
        # In the one thread that the async face of the ORM has its connections in.
        await sync_to_async(tidy)()
        try:
            return await _arun(_Attempt(known, task, args, kwargs))
        finally:
            await sync_to_async(tidy)()

    return with_signature_of(task, arun if iscoroutinefunction(task.func) else run)


def _run(attempt: _Attempt) -> Any:
    with shielded():
        if attempt.is_repeated:
            attempt.recall()
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
        await attempt.arecall()
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

    def __init__(self, known: KnownTasks, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
            *as_given(task, positional(claimed.headers), args, kwargs),
            id=claimed.task_id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=moment(claimed.created_at_ms),
            started_at=now,
            last_attempted_at=now,
            worker_ids=[self._run.require_context("a Django task").worker_id],
        )
        self.kwargs = kwargs
        self._given = args

    @property
    def args(self) -> list[Any]:
        """With the context in front, if the task takes it."""
        return [TaskContext(task_result=self.result), *self._given] if self.task.takes_context else list(self._given)

    @property
    def is_repeated(self) -> bool:
        """Whether there are earlier runs to know of."""
        return fencing_token(self._run.task.token) > 1

    @property
    def has_ended(self) -> bool:
        """Whether this was the last run, as far as this process can tell."""
        return bool(self.result.is_finished)

    def recall(self) -> None:
        """Takes over what the store knows of earlier runs; a run goes on without it rather than fail."""
        try:
            note(self.result, **runs_of(self.handle.status().record))
        except HoldfastError as error:
            self._without_earlier_runs(error)

    async def arecall(self) -> None:
        """As `recall`, for async tasks."""
        try:
            note(self.result, **runs_of((await self.handle.astatus()).record))
        except HoldfastError as error:
            self._without_earlier_runs(error)

    def _without_earlier_runs(self, error: HoldfastError) -> None:
        _log.warning("task %s: its result does not show earlier attempts: %s", self.result.id, error)

    def succeed(self, value: Any) -> Any:
        """What the worker gets: JSON, or the wish to run later or never again."""
        if isinstance(value, (Snooze, Cancel)):
            return value
        if isinstance(value, Again):
            raise value
        try:
            value = normalize_json(value)
        except (TypeError, ValueError) as error:  # a repeat would give the same
            raise BadResult(f"{self.task.module_path}(): the result cannot be JSON: {error}") from error
        note(self.result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        return value

    def fail(self, error: BaseException) -> bool:
        """Notes the error; whether it is the end of the task."""
        if isinstance(error, (Snooze, Cancel, ClaimLost)):
            return False
        cause = cause_of(error) if isinstance(error, Again) else error
        traceback = describe(error).traceback
        self.result.errors.append(TaskError(exception_class_path=error_name(type(cause)), traceback=traceback))
        if not self._is_final(error):
            return False
        note(self.result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        return True

    def _is_final(self, error: BaseException) -> bool:
        run = self._run
        if isinstance(error, (asyncio.CancelledError, TimedOut)) and run.ending is not None:
            used_up = run.ending is Ending.TIMED_OUT and run.task.attempt >= run.task.policy.max_attempts
            return run.ending is Ending.CANCELLED or used_up
        if isinstance(error, (BadArguments, BadResult, PayloadTooDeep, PayloadTooLarge)):
            return True
        policy = run.task.policy
        is_retryable = isinstance(error, Again) or policy.worth_retrying(error_names(error))
        return run.task.attempt >= policy.max_attempts or not is_retryable


def _leave_connections() -> None:
    """A test counts its queries, and goes on with its connections."""


def _tidy_connections() -> None:
    reset_queries()
    close_old_connections()
