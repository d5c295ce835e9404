"""Holdfast: a durable task queue for Python on SQLite, Redis or PostgreSQL."""

from typing import TYPE_CHECKING, Any

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.core.retry import Retry
    from holdfast.core.task import Again, Cancel, Snooze
    from holdfast.errors import (
        BadArguments,
        BadResult,
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
    from holdfast.producer.completion import as_completed
    from holdfast.producer.enqueue import Prepared
    from holdfast.producer.handle import TaskHandle
    from holdfast.producer.hooks import FailedAttempt
    from holdfast.producer.task_info import TaskInfo
    from holdfast.producer.task_set import TaskSet
    from holdfast.producer.task_type import TaskType
    from holdfast.security.keys import Keys
    from holdfast.worker.child.context import RunningTask, current

__all__ = [
    "Again",
    "BadArguments",
    "BadResult",
    "Cancel",
    "ClaimLost",
    "FailedAttempt",
    "Holdfast",
    "HoldfastError",
    "Keys",
    "Prepared",
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
    "TaskInfo",
    "TaskSet",
    "TaskType",
    "TimedOut",
    "UnknownTask",
    "UsageError",
    "__version__",
    "as_completed",
    "current",
]

#: Where each public name lives. A module is imported with the first of its names: a producer needs half of them.
_HOMES = {
    "holdfast.app": ("Holdfast",),
    "holdfast.core.retry": ("Retry",),
    "holdfast.core.task": (
        "Again",
        "Cancel",
        "Snooze",
    ),
    "holdfast.errors": (
        "BadArguments",
        "BadResult",
        "ClaimLost",
        "HoldfastError",
        "Refused",
        "RequestConflict",
        "ResultTimeout",
        "StoreError",
        "StoreFull",
        "StoreUnavailable",
        "TaskCancelled",
        "TaskFailed",
        "TimedOut",
        "UnknownTask",
        "UsageError",
    ),
    "holdfast.producer.completion": ("as_completed",),
    "holdfast.producer.enqueue": ("Prepared",),
    "holdfast.producer.handle": ("TaskHandle",),
    "holdfast.producer.hooks": ("FailedAttempt",),
    "holdfast.producer.task_info": ("TaskInfo",),
    "holdfast.producer.task_set": ("TaskSet",),
    "holdfast.producer.task_type": ("TaskType",),
    "holdfast.security.keys": ("Keys",),
    "holdfast.worker.child.context": (
        "RunningTask",
        "current",
    ),
}


if not TYPE_CHECKING:  # or a checker would believe in every name

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        for module, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(module), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
