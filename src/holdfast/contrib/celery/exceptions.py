"""Celery's exceptions; those of the worker are Holdfast's own under Celery's names."""

from __future__ import annotations

import builtins
from typing import Any

from holdfast.contrib.celery.refusals import missing
from holdfast.core.task import Again, Cancel
from holdfast.errors import StoreError, TimedOut

#: Raised in a task whose soft time limit has passed. Unlike Celery's it is a BaseException: `except Exception` in a
#: task does not catch it by accident.
SoftTimeLimitExceeded = TimedOut
#: The store cannot be reached.
OperationalError = StoreError


class CeleryError(Exception):
    """The base of the exceptions here."""


class ImproperlyConfigured(CeleryError):
    """Settings that cannot be used."""


class TimeoutError(CeleryError, builtins.TimeoutError):  # noqa: A001  (Celery's name)
    """A result that did not arrive in time."""


class NotRegistered(KeyError, CeleryError):
    """A task that the app does not have."""


class MaxRetriesExceededError(CeleryError):
    """A task that was retried as often as it may."""

    def __init__(self, *args: Any, task_args: Any = (), task_kwargs: Any = None) -> None:
        super().__init__(*args)
        self.task_args = task_args
        self.task_kwargs = task_kwargs or {}


class TimeLimitExceeded(CeleryError):
    """A run that was ended at its time limit."""


class WorkerLostError(CeleryError):
    """A task that has lost its worker process too often."""


class TaskRevokedError(CeleryError):
    """A task that was revoked or has expired."""


class Ignore(Cancel):
    """Raised by a task that is to end without a result: it ends as REVOKED."""

    def __init__(self, reason: str = "the task raised Ignore") -> None:
        super().__init__(reason)


class Retry(Again):
    """Raised by `self.retry()`: the attempt ends, and another one follows."""

    def __init__(self, delay: float | None = None, exc: BaseException | None = None, message: str = "") -> None:
        super().__init__(delay, message or f"Retry in {delay:g}s{f': {exc!r}' if exc else ''}" if delay else message)
        self.exc = exc
        #: Seconds until the next attempt.
        self.when = delay


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
