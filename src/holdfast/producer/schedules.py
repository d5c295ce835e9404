"""Schedules as an app declares them: a task type, its arguments, and when."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload
from zoneinfo import ZoneInfo

from holdfast.core.durations import Duration
from holdfast.core.names import check_schedule
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.core.retry import Retry
from holdfast.core.schedule import Call, Schedule, Timing
from holdfast.errors import BadArguments, BadOption, UnknownTaskType
from holdfast.producer.recorder import Prepared
from holdfast.producer.task_type import AsyncTaskType, RunIn, TaskType

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=TaskType[..., Any])

#: By name, or by position.
Arguments = Mapping[str, Any] | Sequence[Any]
MissedTicks = Literal["skip", "once", "all"]
OverlappingTicks = Literal["allow", "skip", "queue"]


class TickOptions(TypedDict, total=False):
    """What becomes of ticks."""

    jitter: Duration
    missed: MissedTicks
    window: Duration
    overlap: OverlappingTicks


class TimingOptions(TickOptions, total=False):
    """When a schedule ticks: `cron` or `every`, and what becomes of its ticks."""

    cron: str
    every: Duration
    timezone: str | ZoneInfo


class CallOptions(TypedDict, total=False):
    """The options of the tasks that a schedule makes."""

    queue: str
    priority: int
    retry: Retry
    timeout: Duration
    hard_timeout: Duration
    expires: Duration
    run: RunIn


class DeclaredOptions(TickOptions, CallOptions, total=False):
    """What may be said besides the rhythm when a schedule is declared."""


class ScheduleDecorator(Protocol):
    """What `@app.cron(...)` gives: a decorator for functions and for task types, that keeps their types."""

    @overload
    def __call__(self, function: T, /) -> T: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R | Snooze | Cancel]], /) -> AsyncTaskType[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R | Snooze | Cancel], /) -> TaskType[P, R]: ...


def split(options: DeclaredOptions) -> tuple[TickOptions, CallOptions]:
    """The options about ticks, and those about tasks; `BadOption` names one that there is not."""
    known = TickOptions.__annotations__.keys() | CallOptions.__annotations__.keys()
    for name in options.keys() - known:
        raise BadOption(f"{name}: a schedule has no such option; it has {', '.join(sorted(known))}")
    ticks = {name: value for name, value in options.items() if name in TickOptions.__annotations__}
    calls = {name: value for name, value in options.items() if name in CallOptions.__annotations__}
    return TickOptions(**ticks), CallOptions(**calls)  # type: ignore[typeddict-item]


def scheduled(
    name: str | None, task_type: TaskType[..., Any], args: Arguments | None, timing: Timing, calls: CallOptions
) -> Schedule:
    """The schedule that calls a task type with these arguments and options; refused at once if it does not take them.

    Its name is that of the type unless it is given.
    """
    if "run" in calls:
        raise BadOption(f"run belongs to the task type: say it where {task_type.name} is declared")
    call = call_of(_prepared(task_type.using(**calls), args))  # type: ignore[misc]  # without `run`
    return Schedule(name=check_schedule(task_type.name if name is None else name), timing=timing, call=call)


def check_known(type_name: str, task_types: Mapping[str, Any]) -> None:
    """`UnknownTaskType` if a schedule would make tasks that the app cannot run."""
    if type_name not in task_types:
        known = ", ".join(sorted(task_types)) or "none"
        raise UnknownTaskType(f"this app has no task type {type_name}; it has {known}")


def call_of(call: Prepared[Any] | TaskType[..., Any]) -> Call:
    """What each tick enqueues: a prepared call, or a task type without arguments."""
    prepared = _prepared(call, None) if isinstance(call, TaskType) else call
    if not isinstance(prepared, Prepared):
        raise BadOption(f"a schedule takes a prepared call, as in report.prepare('eu'), or a task type, not {call!r}")
    options = prepared.options
    unfit = {
        "delay": options.delay_ms,
        "run_at": options.run_at_ms,
        "request_id": options.request_id,
        "transaction": options.transaction,
    }
    for name, value in unfit.items():
        if value:
            raise BadOption(f"{name}: the schedule decides when its tasks run and what they are called; leave it out")
    made = Call(
        type=prepared.type,
        queue=options.queue,
        payload=prepared.payload,
        headers=options.headers,
        priority=options.priority,
        policy=options.policy,
    )
    return made if options.sealing is None else options.sealing.call(made)


def _prepared(task_type: TaskType[..., Any], args: Arguments | None) -> Prepared[Any]:
    if args is not None and (isinstance(args, (str, bytes)) or not isinstance(args, (Mapping, Sequence))):
        raise BadArguments(f"args: {args!r:.80} is neither a mapping of arguments by name nor a list of them")
    try:
        if isinstance(args, Mapping):
            return task_type.prepare(**args)
        return task_type.prepare(*(args or ()))
    except BadArguments as error:
        if args is not None:
            raise
        raise BadArguments(f"{error}; a schedule needs defaults for all of them, or args={{...}}") from None
