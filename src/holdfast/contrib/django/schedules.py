"""Schedules of Django tasks, declared beside their functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, Unpack

from holdfast.contrib.django.policy import function_of
from holdfast.core.durations import Duration
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.record import Timing
from holdfast.producer.schedules import Arguments, DeclaredOptions, split

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from holdfast.app import Holdfast
    from holdfast.producer.task_type import TaskType

F = TypeVar("F")
#: Where a function carries its schedules.
_ATTRIBUTE: Final = "__holdfast_schedules__"


class _Declared(NamedTuple):
    """One schedule: declares it for a task type of an app."""

    declare: Callable[[Holdfast, TaskType[..., Any]], Any]


def cron(
    line: str,
    /,
    *,
    timezone: str | ZoneInfo = "UTC",
    name: str | None = None,
    args: Arguments | None = None,
    **options: Unpack[DeclaredOptions],
) -> Callable[[F], F]:
    """Enqueues a Django task by a cron line, as `Holdfast.cron` does; under or over `@task`."""
    changed_timing(Timing(), cron=line, timezone=timezone, **split(options)[0])
    return _carried(
        lambda app, task_type: app.cron(line, timezone=timezone, name=name, args=args, **options)(task_type)
    )


def every(
    interval: Duration,
    /,
    *,
    name: str | None = None,
    args: Arguments | None = None,
    **options: Unpack[DeclaredOptions],
) -> Callable[[F], F]:
    """Enqueues a Django task every so often, as `Holdfast.every` does; under or over `@task`."""
    changed_timing(Timing(), every=interval, **split(options)[0])
    return _carried(lambda app, task_type: app.every(interval, name=name, args=args, **options)(task_type))


def declare_schedules(task: Any, app: Holdfast, task_type: TaskType[..., Any]) -> None:
    """Declares the schedules that the function of a task carries; a worker that starts creates them in the store."""
    for each in getattr(task.func, _ATTRIBUTE, ()):
        each.declare(app, task_type)


def _carried(declare: Callable[[Holdfast, TaskType[..., Any]], Any]) -> Callable[[F], F]:
    def carry(function: F) -> F:
        target = function_of(function, "a schedule")
        setattr(target, _ATTRIBUTE, (*getattr(target, _ATTRIBUTE, ()), _Declared(declare)))
        return function

    return carry
