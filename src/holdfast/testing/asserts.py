"""`assert_enqueued`: which tasks a test has enqueued, compared by their arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.core.durations import Duration, duration_ms, format_ms
from holdfast.core.task import Task
from holdfast.errors import UsageError
from holdfast.producer.enqueue import Prepared
from holdfast.producer.task_info import TaskInfo, task_info
from holdfast.producer.task_type import TaskType
from holdfast.stores.contract import Query, Store

#: Of each page that is read from the store.
_PAGE: Final = 1_000
#: Tasks that a failed assertion shows.
_MAX_SHOWN: Final = 10
_OPTIONS: Final = ("queue", "delay", "priority", "count")

Arguments = Mapping[str, Any]


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a task must be like; None stands for anything."""

    arguments: Arguments | None
    queue: str | None
    delay_ms: int | None
    priority: int | None

    def fits(self, found: _Found) -> bool:
        return (
            (self.arguments is None or self.arguments == found.arguments)
            and (self.queue is None or self.queue == found.task.queue)
            and (self.delay_ms is None or self.delay_ms == found.delay_ms)
            and (self.priority is None or self.priority == found.task.priority)
        )

    def __str__(self) -> str:
        options = [
            *([f"queue={self.queue!r}"] if self.queue is not None else []),
            *([f"delay={format_ms(self.delay_ms)!r}"] if self.delay_ms is not None else []),
            *([f"priority={self.priority}"] if self.priority is not None else []),
        ]
        arguments = "(...)" if self.arguments is None else _shown(self.arguments)
        return arguments + (f" with {', '.join(options)}" if options else "")


class _Found(msgspec.Struct, frozen=True):
    """A task of the type that is in the store."""

    task: Task
    arguments: Arguments

    @property
    def delay_ms(self) -> int:
        """How long after its enqueue it is due, or was first started."""
        task = self.task
        started = [attempt.started_at_ms for attempt in task.history]
        if not started and task.claimed_at_ms is not None:
            started = [task.claimed_at_ms]
        return (started[0] if started else task.run_at_ms) - task.created_at_ms

    def __str__(self) -> str:
        task = self.task
        delay = f", delay={format_ms(self.delay_ms)!r}" if self.delay_ms else ""
        return f"{_shown(self.arguments)} in queue {task.queue!r}, priority={task.priority}{delay}, {task.state}"


def assert_enqueued(
    task_type: TaskType[..., Any] | Prepared[Any],
    /,
    *args: Any,
    queue: str | None = None,
    delay: Duration | None = None,
    priority: int | None = None,
    count: int | None = None,
    **kwargs: Any,
) -> list[TaskInfo]:
    """The tasks of this type, with these arguments if any are given, that were enqueued; at least one, or `count`.

    It counts tasks in any state, until they are pruned. For a function that takes an argument named as one of the
    options, or to have the arguments checked by a type checker, pass `resize.prepare("cat.jpg")`.
    """
    __tracebackhide__ = True  # a failure is shown where the test makes the assertion
    search = _Search(task_type, args, kwargs, queue=queue, delay=delay, priority=priority)
    if len(search.fitting) == count or (count is None and search.fitting):
        return [task_info(search.link, each.task) for each in search.fitting]
    expected = "" if count is None else f", expected {count}"
    raise AssertionError(f"{search}{expected}{_listed(search.name, search.found)}")


def assert_not_enqueued(
    task_type: TaskType[..., Any] | Prepared[Any],
    /,
    *args: Any,
    queue: str | None = None,
    delay: Duration | None = None,
    priority: int | None = None,
    **kwargs: Any,
) -> None:
    """Fails if a task of this type, with these arguments if any are given, was enqueued."""
    __tracebackhide__ = True  # a failure is shown where the test makes the assertion
    search = _Search(task_type, args, kwargs, queue=queue, delay=delay, priority=priority)
    if search.fitting:
        raise AssertionError(f"{search}{_listed(search.name, search.fitting)}")


class _Search:
    """The tasks of a type, and those of them that are wanted."""

    def __init__(
        self,
        call: TaskType[..., Any] | Prepared[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        queue: str | None,
        delay: Duration | None,
        priority: int | None,
    ) -> None:
        task_type, payload = _checked(call, args, kwargs)
        self.name = task_type.name
        self.link = task_type.recorder.link
        self._wanted = _Wanted(
            arguments=None if payload is None else _arguments(task_type, payload),
            queue=queue,
            delay_ms=None if delay is None else duration_ms(delay, "delay"),
            priority=priority,
        )
        tasks = self.link.run(_tasks_of(self.link.store(), self.name))
        self.found = [_Found(task, _arguments(task_type, self.link.opened_arguments(task))) for task in tasks]
        self.fitting = [each for each in self.found if self._wanted.fits(each)]

    def __str__(self) -> str:
        count = len(self.fitting)
        number = "no task was" if not count else "1 task was" if count == 1 else f"{count} tasks were"
        return f"{number} enqueued as {self.name}{self._wanted}"


def _checked(
    call: TaskType[..., Any] | Prepared[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[TaskType[..., Any], bytes | None]:
    """The task type, and the arguments as they are enqueued; None for any."""
    if isinstance(call, Prepared):
        if args or kwargs:
            raise UsageError("assert_enqueued(): a prepared call has its arguments: give options only, such as queue=")
        return _declared(call), call.payload
    if not isinstance(call, TaskType):
        raise UsageError(f"assert_enqueued() takes a task type, the function under @app.task, not {call!r}")
    if not args and not kwargs:
        return call, None
    taken = [name for name in inspect.signature(call.function).parameters if name in _OPTIONS]
    if taken:
        raise UsageError(
            f"assert_enqueued(): {call.name} takes an argument named {taken[0]!r}, which is also an option of "
            f"assert_enqueued: write assert_enqueued({call.name.rpartition('.')[2]}.prepare(...), {taken[0]}=...)"
        )
    return call, call.codec.encode(args, kwargs)


def _declared(call: Prepared[Any]) -> TaskType[..., Any]:
    task_type = None if call.recorder is None else call.recorder.task_types.get(call.type)
    if not isinstance(task_type, TaskType):
        raise UsageError(f"assert_enqueued(): {call.type} is not a task type of an app")
    return task_type


def _arguments(task_type: TaskType[..., Any], payload: bytes) -> Arguments:
    """By name, with defaults: `resize("cat.jpg")` is `resize(path="cat.jpg", width=100)`."""
    args, kwargs = task_type.codec.decode(payload)
    bound = inspect.signature(task_type.function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


async def _tasks_of(store: Store, type_name: str) -> list[Task]:
    """The tasks of a type, the oldest first."""
    found: list[Task] = []
    cursor: str | None = None
    while True:
        page = await store.find(Query(type=type_name, limit=_PAGE, cursor=cursor))
        found += [task for task in await store.get([task.task_id for task in page.tasks]) if task is not None]
        cursor = page.cursor
        if cursor is None:
            return found[::-1]


def _shown(arguments: Arguments) -> str:
    return f"({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _listed(name: str, found: list[_Found]) -> str:
    if not found:
        return f"; no task of {name} was enqueued at all"
    lines = [f"  {name}{each}" for each in found[:_MAX_SHOWN]]
    more = [f"  and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
    return "\nenqueued were:\n" + "\n".join(lines + more)
