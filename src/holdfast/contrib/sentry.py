"""Sentry: failed attempts of tasks as events, each with its task, in a scope of its own.

    sentry_sdk.init(dsn=...)
    instrument(app)

It needs `sentry-sdk` 2; only names that its documentation has are used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from holdfast.app import Holdfast
from holdfast.contrib.missing import needs
from holdfast.core.task import Again
from holdfast.producer.hooks import FailedAttempt
from holdfast.worker.child.context import RunningTask
from holdfast.worker.child.failure import cause_of

with needs("holdfast.contrib.sentry", "sentry-sdk"):
    import sentry_sdk
    from sentry_sdk.scope import use_isolation_scope

#: How long the last events of a process may take to get out of it.
FLUSH_S: Final = 2.0

#: Where an exception keeps the scope that it was raised in, until its attempt has failed.
_SCOPE: Final = "__holdfast_sentry_scope__"


def instrument(app: Holdfast, *, retries: bool = True) -> None:
    """Sends the failures of this app's tasks to Sentry; without `retries`, only those after which no attempt follows.

    Every task runs in an isolation scope of its own, with its id, type, queue and attempt as tags. A failure that is
    retried is a warning, a dead letter an error.
    """
    app.around(_in_scope)
    app.lifespan(_flushed)

    @app.on_failure
    async def capture(task: RunningTask, failure: FailedAttempt) -> None:
        if failure.final or retries:
            _capture(task, failure)


async def _in_scope(task: RunningTask, call_next: Callable[[], Awaitable[Any]]) -> Any:
    with sentry_sdk.isolation_scope() as scope:
        _describe(scope, task)
        try:
            return await call_next()
        except BaseException as error:
            # An exception without a `__dict__` is reported with the tags of its task, and without its breadcrumbs.
            with suppress(AttributeError):
                setattr(cause_of(error) if isinstance(error, Again) else error, _SCOPE, scope)
            raise


def _describe(scope: Any, task: RunningTask) -> None:
    scope.set_transaction_name(task.type)
    scope.set_tag("holdfast.task_id", task.task_id)
    scope.set_tag("holdfast.task_type", task.type)
    scope.set_tag("holdfast.queue", task.queue)
    scope.set_tag("holdfast.attempt", str(task.attempt))


def _capture(task: RunningTask, failure: FailedAttempt) -> None:
    cause = failure.error.__cause__
    kept = getattr(failure.error, _SCOPE, None) or getattr(cause, _SCOPE, None)
    with sentry_sdk.isolation_scope() if kept is None else use_isolation_scope(kept) as entered:
        scope = entered if kept is None else kept
        _describe(scope, task)
        scope.set_tag("holdfast.final", "yes" if failure.final else "no")
        if failure.reason is not None:
            scope.set_tag("holdfast.reason", failure.reason)
        sentry_sdk.capture_exception(failure.error, level="error" if failure.final else "warning")


@contextmanager
def _flushed() -> Iterator[None]:
    """A worker's process ends without its exit handlers, which would send what is left."""
    try:
        yield
    finally:
        sentry_sdk.flush(timeout=FLUSH_S)
