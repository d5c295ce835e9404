"""The hooks of an app after each attempt: `@app.on_success` and `@app.on_failure`, before the attempt is settled."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.core.durations import format_ms
from holdfast.core.lifecycle import Change, Event
from holdfast.core.task import Again
from holdfast.errors import HoldfastError, TimedOut
from holdfast.producer.hooks import EndHook, FailedAttempt
from holdfast.worker.child.context import RunningTask, current_run
from holdfast.worker.child.copies import end_copy
from holdfast.worker.child.execute import Unfit
from holdfast.worker.child.failure import cause_of
from holdfast.worker.child.run import Finish, Run, Threads

_log = logging.getLogger("holdfast.worker")

#: How long the hooks of one attempt may take together; it is settled without those that have not ended.
HOOKS_S: Final = 10.0

_FAILURES: Final = frozenset({Event.RETRY, Event.BURY, Event.FAIL})


def with_hooks(app: Holdfast, loop: asyncio.AbstractEventLoop, finish: Finish, threads: Threads) -> Finish:
    """What is to be called when a run has ended: `finish` itself, or after the hooks of the app."""
    if not (app.success_hooks or app.failure_hooks):
        return finish
    return EndHooks(app, loop, finish, threads).finish


@dataclass(frozen=True, slots=True)
class _ThreadHook:
    """A `def` hook, which may block."""

    hook: EndHook
    run: Run
    told: Any
    context: contextvars.Context
    ended: asyncio.Future[BaseException | None]


class EndHooks:
    """Runs the hooks of ended runs; the run keeps its slot and its claim until they have ended, or their time is over.

    So a hook is called again if the process dies before the settlement, as the task is, and never for a claim that was
    known to be lost.
    """

    def __init__(self, app: Holdfast, loop: asyncio.AbstractEventLoop, finish: Finish, threads: Threads) -> None:
        self._loop = loop
        self._success_hooks = app.success_hooks
        self._failure_hooks = app.failure_hooks
        self._settle = finish
        self._threads = threads(loop, _call, _tell, _raised)
        #: So that they are not collected while they run, also those that are not waited for any more.
        self._under_way: set[asyncio.Future[Any]] = set()

    def finish(self, run: Run, change: Change | None) -> None:
        """A run has ended; called on the event loop, and settles it when its hooks have ended."""
        hooks, told = self._due(run, change)
        if not hooks:
            self._end(run, change)
            return
        if run.limit is not None:
            run.limit.stop()
        run.conclusion, run.in_hooks, run.handle, run.returned_at_ns = change, True, None, 0
        hooks_task = self._keep(self._loop.create_task(self._run(run, hooks, told)))
        # Not at the end of the coroutine: a task that is cancelled before its first step never enters it.
        hooks_task.add_done_callback(lambda _: self._end(run, _with_log(run, change)))

    def _due(self, run: Run, change: Change | None) -> tuple[tuple[EndHook, ...], Any]:
        if run.lost:
            return (), None
        if run.settled or (change is not None and change.event is Event.ACK):
            return self._success_hooks, run.value
        if change is not None and change.event in _FAILURES:
            return self._failure_hooks, _failed_attempt(run, change) if self._failure_hooks else None
        return (), None

    async def _run(self, run: Run, hooks: Sequence[EndHook], told: Any) -> None:
        current_run.set(run)
        ends_at = self._loop.time() + HOOKS_S
        for hook in hooks:
            await self._call(run, hook, told, ends_at - self._loop.time())

    def _end(self, run: Run, change: Change | None) -> None:
        self._settle(run, change)
        run.error = None  # its traceback refers to the run

    async def _call(self, run: Run, hook: EndHook, told: Any, seconds: float) -> None:
        called = self._start(hook, run, told)
        name, task_id = getattr(hook, "__name__", repr(hook)), run.task.task_id
        if not (await asyncio.wait([called], timeout=max(0.0, seconds)))[0]:
            called.cancel()
            limit = format_ms(round(HOOKS_S * 1000))
            _log.error("task %s: the hook %s has not ended within %s; going on without it", task_id, name, limit)
        elif not called.cancelled() and (error := called.result()) is not None:
            _log.error("task %s: the hook %s failed; the outcome of the task stays", task_id, name, exc_info=error)

    def _start(self, hook: EndHook, run: Run, told: Any) -> asyncio.Future[BaseException | None]:
        if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None)):  # noqa: B004
            return self._keep(self._loop.create_task(_awaited(hook, run, told)))
        ended: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._threads.start(_ThreadHook(hook, run, told, contextvars.copy_context(), ended))
        return ended

    def _keep(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


async def _awaited(hook: EndHook, run: Run, told: Any) -> BaseException | None:
    try:
        await hook(RunningTask(run), told)
        end_copy(run)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  (SystemExit too would leave the event loop)
        end_copy(run, error)
        return error
    return None


def _call(call: _ThreadHook) -> BaseException | None:
    try:
        call.context.run(call.hook, RunningTask(call.run), call.told)
        end_copy(call.run)
    except BaseException as error:  # noqa: BLE001  (logged where it is awaited)
        end_copy(call.run, error)
        return error
    return None


def _raised(_: _ThreadHook, error: BaseException) -> BaseException | None:
    return error


def _tell(call: _ThreadHook, error: BaseException | None) -> None:
    if not call.ended.done():  # else its time was over
        call.ended.set_result(error)


def _with_log(run: Run, change: Change | None) -> Change | None:
    """The same change; a failure takes the lines that its hooks have logged with it."""
    if change is None or change.error is None or run.report is None:
        return change
    return replace(change, error=replace(change.error, log=run.report.log()))


def _failed_attempt(run: Run, change: Change) -> FailedAttempt:
    final = change.event is not Event.RETRY
    return FailedAttempt(_error_of(run, change), final, None if final else change.delay_ms / 1000, change.reason)


def _error_of(run: Run, change: Change) -> BaseException:
    error, message = run.error, change.error.message if change.error is not None else ""
    if isinstance(error, Unfit):
        error = error.__cause__
    if isinstance(error, Again):
        return cause_of(error)
    if change.outcome == "timed_out" and not isinstance(error, TimedOut):
        timed_out = TimedOut(message)
        timed_out.__cause__ = error
        return timed_out
    return error or HoldfastError(message)
