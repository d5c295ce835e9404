"""Schedules as an app declares them: a task type, its arguments, and when."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload
from zoneinfo import ZoneInfo

from holdfast.core.durations import Duration
from holdfast.core.habits import unknown_option
from holdfast.core.names import check_schedule
from holdfast.core.retry import Retry
from holdfast.core.schedule.decide import changed_call
from holdfast.core.schedule.occurrences import signed_timing
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import Outcome
from holdfast.errors import BadArguments, BadOption, UnknownTaskType
from holdfast.producer.enqueue import Prepared
from holdfast.producer.task_type import AsyncTaskType, RunIn, TaskType
from holdfast.security.crypto import PayloadCrypto

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=TaskType[..., Any])

#: By name, or by position.
Arguments = Mapping[str, Any] | Sequence[Any]
MissedOccurrences = Literal["skip", "once", "all"]
OverlappingOccurrences = Literal["allow", "skip", "queue"]


class OccurrenceOptions(TypedDict, total=False):
    """Options about occurrences: jitter, and what becomes of missed and overlapping ones."""

    jitter: Duration
    missed: MissedOccurrences
    window: Duration
    overlap: OverlappingOccurrences


class TimingOptions(OccurrenceOptions, total=False):
    """When a schedule has its occurrences: `cron` or `every`, and what becomes of them."""

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


class DeclaredOptions(OccurrenceOptions, CallOptions, total=False):
    """What may be said besides the rhythm when a schedule is declared."""


class ScheduleDecorator(Protocol):
    """What `@app.cron(...)` gives: a decorator for functions and for task types, that keeps their types."""

    @overload
    def __call__(self, function: T, /) -> T: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R | Outcome]], /) -> AsyncTaskType[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R | Outcome], /) -> TaskType[P, R]: ...


def split(options: DeclaredOptions) -> tuple[OccurrenceOptions, CallOptions]:
    """The options about occurrences, and those about tasks; `BadOption` names an unknown option."""
    known = OccurrenceOptions.__annotations__.keys() | CallOptions.__annotations__.keys()
    for name in options.keys() - known:
        raise unknown_option("a schedule", name, sorted(known))
    occurrences = {name: value for name, value in options.items() if name in OccurrenceOptions.__annotations__}
    calls = {name: value for name, value in options.items() if name in CallOptions.__annotations__}
    return OccurrenceOptions(**occurrences), CallOptions(**calls)  # type: ignore[typeddict-item]


def scheduled(
    name: str | None, task_type: TaskType[..., Any], args: Arguments | None, timing: Timing, calls: CallOptions
) -> Schedule:
    """The schedule that calls a task type with these arguments and options; refused at once if it does not take them.

    Its name is that of the type unless it is given.
    """
    if "run" in calls:
        raise BadOption(f"run belongs to the task type: say it where {task_type.name} is declared")
    prepared = _prepared(task_type.using(**calls), args)  # type: ignore[misc]  # without `run`
    name = check_schedule(task_type.name if name is None else name)
    return Schedule(
        name=name, timing=timing, call=protected_call(call_of(prepared), prepared.options.crypto, name, timing)
    )


def check_known(type_name: str, task_types: Mapping[str, Any]) -> None:
    """`UnknownTaskType` if a schedule would make tasks that the app cannot run."""
    if type_name not in task_types:
        known = ", ".join(sorted(task_types)) or "none"
        raise UnknownTaskType(f"this app has no task type {type_name}; it has {known}")


def protected_call(call: ScheduledCall, crypto: PayloadCrypto | None, name: str, timing: Timing) -> ScheduledCall:
    """What each occurrence of the schedule of this name and timing enqueues, as its app signs and encrypts it."""
    return call if crypto is None else crypto.call(call, name, timing)


def edited_call(
    schedule: Schedule,
    new: ScheduledCall | None,
    timing: Timing,
    crypto: PayloadCrypto | None,
    *,
    queue: str | None,
    priority: int | None,
) -> ScheduledCall:
    """The call of a schedule that gets this timing and the given changes; signed and encrypted again where needed."""
    before = schedule.call
    fits = queue in {None, before.queue} and signed_timing(timing) == signed_timing(schedule.timing)
    if crypto is None or (new is None and fits):
        return changed_call(new or before, queue=queue, priority=priority)
    plain = crypto.opened_call(schedule) if new is None else new
    return crypto.call(changed_call(plain, queue=queue, priority=priority), schedule.name, timing)


def call_of(call: Prepared[Any] | TaskType[..., Any]) -> ScheduledCall:
    """What each occurrence enqueues: a prepared call, or a task type without arguments; not yet signed or encrypted."""
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
    return ScheduledCall(
        type=prepared.type,
        queue=options.queue,
        payload=prepared.payload,
        headers=options.headers,
        priority=options.priority,
        policy=options.policy,
    )


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
