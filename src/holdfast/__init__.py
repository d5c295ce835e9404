"""Holdfast: a distributed task queue that is fast and never lets go."""

from holdfast.app import Holdfast
from holdfast.core.keys import Keys
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.core.retry import Retry
from holdfast.errors import (
    BadArguments,
    ClaimLost,
    HoldfastError,
    Refused,
    RequestConflict,
    ResultTimeout,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    TimedOut,
    UnknownTask,
    UsageError,
)
from holdfast.producer.handle import TaskHandle
from holdfast.producer.task_type import TaskType
from holdfast.version import __version__
from holdfast.worker.context import RunningTask, current

__all__ = [
    "BadArguments",
    "Cancel",
    "ClaimLost",
    "Holdfast",
    "HoldfastError",
    "Keys",
    "Refused",
    "RequestConflict",
    "ResultTimeout",
    "Retry",
    "RunningTask",
    "Snooze",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "TaskType",
    "TimedOut",
    "UnknownTask",
    "UsageError",
    "__version__",
    "current",
]
