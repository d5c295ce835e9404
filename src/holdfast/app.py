"""The app: the one place that wires the parts together."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from holdfast.clock import Clock, SystemClock
from holdfast.core import payload
from holdfast.core.arguments import result_decoder
from holdfast.core.durations import Duration, duration_ms
from holdfast.core.habits import APP_HABITS, habit, only_known_options
from holdfast.core.ids import IdSource, check_task_id
from holdfast.core.names import check_queue
from holdfast.core.retry import Retry, RunPolicy
from holdfast.errors import BadName, BadOption
from holdfast.observe.tracing import Traces, check_traces
from holdfast.producer.enqueue import Eager, Prepared, Recorder, crypto_of
from holdfast.producer.handle import TaskHandle
from holdfast.producer.hooks import Hooks, OutgoingT, checked_outgoing
from holdfast.producer.options import Options, changed
from holdfast.producer.portal import PerProcess, Portal, StoreLink
from holdfast.producer.task_set import Declares, Modules, TaskOptions, TaskSet
from holdfast.producer.task_type import RunIn, TaskType, declare
from holdfast.stores.open import DEFAULT_URL, open_store, redacted, resolved

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from holdfast.core.schedule.record import Schedule, Timing
    from holdfast.core.task import Task
    from holdfast.producer.app_schedules import Schedules
    from holdfast.producer.queues import Queues
    from holdfast.producer.schedules import Arguments, CallOptions, DeclaredOptions, ScheduleDecorator
    from holdfast.producer.task_info import TaskInfo
    from holdfast.producer.tasks import DeadLetters, TaskRef, Tasks
    from holdfast.producer.workers import Workers
    from holdfast.security.keys import Keys
    from holdfast.stores.contract import Store

R = TypeVar("R")

#: Shorter leases would be lost to a busy machine, longer ones leave the tasks of a dead worker lying.
_SHORTEST_LEASE_MS, _LONGEST_LEASE_MS = 1_000, 86_400_000


class Holdfast(Declares, Hooks):
    """An app: its task types, and the store that their tasks are kept in.

    Making one opens nothing; the store is opened on first use, and again in a forked child.
    """

    @only_known_options("Holdfast()")
    def __init__(  # noqa: PLR0913  (the options that an app may have)
        self,
        url: str | None = None,
        *,
        lease: Duration = "30s",
        queue: str = "default",
        retry: Retry | None = None,
        result_ttl: Duration = "1d",
        dead_letter_ttl: Duration = "14d",
        max_payload: int = payload.MAX_BYTES,
        signing: Keys | None = None,
        encryption: Keys | None = None,
        traces: Traces = "link",
        timeout: Duration | None = None,
        hard_timeout: Duration | None = None,
        run: Literal["process"] | None = None,
        include: Sequence[TaskSet | str] = (),
    ) -> None:
        self.url = resolved(url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL)
        self.lease_ms = _checked_lease_ms(lease)
        self.max_payload = _checked_max_payload(max_payload)
        self.traces = check_traces(traces)
        #: How it signs and encrypts, if it does.
        self.crypto = crypto_of(signing, encryption, self.max_payload)
        #: What its tasks carry unless they are declared otherwise; how long they are kept rides with each of them.
        self.policy = RunPolicy(
            result_ttl_ms=duration_ms(result_ttl, "result_ttl"),
            dead_letter_ttl_ms=duration_ms(dead_letter_ttl, "dead_letter_ttl"),
        )
        if self.crypto is not None:
            from holdfast.core.schedule.occurrences import kept_for
            from holdfast.security.crypto import REMEMBERED_MS

            self.policy = kept_for(self.policy, REMEMBERED_MS)
        self._options = changed(
            Options(policy=self.policy, crypto=self.crypto),
            queue=queue,
            retry=retry,
            timeout=timeout,
            hard_timeout=hard_timeout,
        )
        self._run = _checked_run(run)
        self._task_types: dict[str, TaskType[..., Any]] = {}
        self._schedules: dict[str, Schedule] = {}
        self._queues: set[str] = set()
        self._stores = PerProcess(functools.partial(open_store, self.url))
        self._portal = Portal(functools.partial(_close, self._stores))
        self._link = StoreLink(self._stores.get, self._portal, self.crypto)
        #: The time of its tasks; a test may redirect it.
        self.clock: Clock = SystemClock()
        self._ids = IdSource(self.clock.now_ms, os.urandom)
        self._recorder = Recorder(self._link, self._ids)
        self._recorder.task_types = self._task_types
        self._modules = Modules(self)
        self.include(*_checked_include(include))
        # Handles and task types may outlive the app: what they share is let go with the last of them.
        weakref.finalize(self._link, self._portal.abandon).atexit = False

    @property
    def store(self) -> Store:
        """The store of this process, opened on first use."""
        return self._stores.get()

    @property
    def task_types(self) -> Mapping[str, TaskType[..., Any]]:
        """The declared task types, by name; imports the modules of `include` and `discover` first."""
        self._modules.load()
        return MappingProxyType(self._task_types)

    @property
    def queues(self) -> Queues:
        """The queues of the store: what waits in them, whether they go on, what priority is worth in them."""
        from holdfast.producer.queues import Queues

        return Queues(self._link)

    @property
    def tasks(self) -> Tasks:
        """The tasks of the store, those of other apps included: list, get, count, why, cancel, run again."""
        from holdfast.producer.tasks import Tasks

        return Tasks(self._link, self.clock, self._ids)

    @property
    def dead(self) -> DeadLetters:
        """The dead letters of the store: list, get, replay, discard."""
        from holdfast.producer.tasks import DeadLetters

        return DeadLetters(self._link, self.clock)

    @property
    def workers(self) -> Workers:
        """The workers of the store: list, drain, resume, stop."""
        from holdfast.producer.workers import Workers

        return Workers(self._link)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store, to look at, make and change."""
        from holdfast.producer.app_schedules import Schedules

        return Schedules(self._link, self._ids, self.task_types)

    @property
    def declared_schedules(self) -> tuple[Schedule, ...]:
        """The schedules that the code declares; a worker that starts brings the store in line with them."""
        self._modules.load()
        return tuple(self._schedules.values())

    @property
    def declared_queues(self) -> tuple[str, ...]:
        """The queues of its task types and schedules, and those of `declare_queues`: what its workers serve."""
        types = {task_type.queue for task_type in self.task_types.values()}
        schedules = {schedule.call.queue for schedule in self._schedules.values()}
        return tuple(sorted(types | schedules | self._queues))

    # -- declaring ------------------------------------------------------------------------------------------

    def declare_queues(self, *queues: str) -> None:
        """Names queues that calls choose with `using(queue=...)`, so that the workers of this app serve them too."""
        self._queues.update(check_queue(queue) for queue in queues)

    def _check_options(self, given: TaskOptions) -> None:
        changed(self._options, **given)

    def _declare(
        self, function: Callable[..., Any], name: str | None, given: TaskOptions, run: RunIn | None
    ) -> TaskType[..., Any]:
        if not callable(function):
            raise BadOption(f"@app.task takes a function, not {function!r}; options need names, as in queue='images'")
        return self._know(self._declared(function, name, given, run))

    def _declared(
        self, function: Callable[..., Any], name: str | None, given: TaskOptions, run: RunIn | None
    ) -> TaskType[..., Any]:
        options = changed(self._options, **given)
        return declare(self._recorder, function, name, options, self.max_payload, run or self._run)

    def _know(self, task_type: TaskType[..., Any]) -> TaskType[..., Any]:
        if task_type.name in self._task_types:
            raise BadName(f"task type {task_type.name!r} is declared twice in this app: give one of them another name=")
        self._check_middleware(task_type.name, is_async=task_type.is_async)
        self._task_types[task_type.name] = task_type
        return task_type

    def adopt(self, task_type: TaskType[..., Any], given: TaskOptions, run: RunIn | None) -> None:
        """Makes a task type of a `TaskSet` one of this app, with its defaults; called by `include`."""
        made = self._declared(task_type.function, task_type.name, given, run)
        self._know(task_type)
        task_type.__dict__.update(made.__dict__)

    def include(self, *tasks: TaskSet | str) -> None:
        """Takes over the task types of these sets, or of modules by their names: `app.include("proj.mail")`.

        A set is included at once. A module is imported when the task types are first needed, by a worker or by
        `task_types`, so that it can import the app; the sets in it are included.
        """
        for each in tasks:
            if isinstance(each, TaskSet):
                each.included_by(self)
            else:
                self._modules.add([each])

    def discover(self, module: str, packages: Sequence[str] | None = None) -> None:
        """Includes the modules of this name of these packages, those that have one; by default of all Django apps.

        `app.discover("tasks", packages=["proj.mail", "proj.shop"])` imports `proj.mail.tasks` and `proj.shop.tasks`.
        """
        self._modules.discover(module, packages)

    def cron(
        self,
        line: str,
        /,
        *,
        timezone: str | ZoneInfo = "UTC",
        name: str | None = None,
        args: Arguments | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> ScheduleDecorator:
        """Calls a function or a task type by a cron line: five fields, or six with seconds first, or `@daily`."""
        from holdfast.core.schedule.decide import changed_timing
        from holdfast.core.schedule.record import Timing
        from holdfast.producer.schedules import split

        occurrences, calls = split(options)
        return self._schedule(changed_timing(Timing(), cron=line, timezone=timezone, **occurrences), name, args, calls)

    def every(
        self,
        interval: Duration,
        /,
        *,
        name: str | None = None,
        args: Arguments | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> ScheduleDecorator:
        """Calls a function or a task type every so often, counted from 1970-01-01T00:00Z."""
        from holdfast.core.schedule.decide import changed_timing
        from holdfast.core.schedule.record import Timing
        from holdfast.producer.schedules import split

        occurrences, calls = split(options)
        return self._schedule(changed_timing(Timing(), every=interval, **occurrences), name, args, calls)

    def _schedule(
        self, timing: Timing, name: str | None, args: Arguments | None, calls: CallOptions
    ) -> ScheduleDecorator:
        from holdfast.producer.schedules import CallOptions, check_known, scheduled

        def declare_schedule(function: Any, /) -> Any:
            declared = function if isinstance(function, TaskType) else self.task(name=name, **calls)(function)
            check_known(declared.name, self._task_types)
            schedule = scheduled(name, declared, args, timing, CallOptions() if declared is not function else calls)
            if schedule.name in self._schedules:
                raise BadName(f"schedule {schedule.name!r} is declared twice in this app: give one of them a name=")
            self._schedules[schedule.name] = schedule
            return declared

        return declare_schedule

    def outgoing(self, function: OutgoingT) -> OutgoingT:
        """Declares a hook that is called with every prepared call of this app just before it is enqueued.

        `def add_tenant(call): call.add_headers({"tenant": …})`. It sees `call.task_id`, runs in the thread and context
        of the caller, and must not block; what it raises goes to the caller, and the call is not enqueued.
        """
        self._recorder.outgoing = (*self._recorder.outgoing, checked_outgoing(function))
        return function

    # -- recording and following ----------------------------------------------------------------------------

    def enqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """Records prepared calls in batches, in order; each batch is durable before the next is sent."""
        return self._recorder.enqueue_many(calls)

    async def aenqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """Records prepared calls in batches, in order; each batch is durable before the next is sent."""
        return await self._recorder.aenqueue_many(calls)

    @overload
    def handle(self, task_id: str) -> TaskHandle[Any]: ...

    @overload
    def handle(self, task_id: str, result_type: type[R]) -> TaskHandle[R]: ...

    def handle(self, task_id: str, result_type: Any = Any) -> TaskHandle[Any]:
        """Follows a task that was recorded elsewhere; whether it exists is asked with the first call on it."""
        return TaskHandle(self._link, check_task_id(task_id), result_decoder(result_type, f"task {task_id}"))

    def status_many(self, tasks: Iterable[TaskRef]) -> list[TaskInfo | None]:
        """Each of these tasks (ids or handles) in order, None for one that the store does not know."""
        return self._link.run(self.astatus_many(tasks))

    async def astatus_many(self, tasks: Iterable[TaskRef]) -> list[TaskInfo | None]:
        """Each of these tasks (ids or handles) in order, None for one that the store does not know."""
        from holdfast.producer.tasks import astatus_many

        return await astatus_many(self._link, tasks)

    # -- life -----------------------------------------------------------------------------------------------

    def watch_stores(self, observed: Callable[[Store], Store]) -> None:
        """Every store that is opened from now on is used through what this makes of it: for metrics."""
        self._stores.through(observed)

    def redirect(self, url: str, clock: Clock, eager: Eager | None = None) -> Callable[[], None]:
        """Keeps its tasks in another store, by another clock, until what this gives is called: for tests."""
        stores = self._stores.replace(functools.partial(open_store, url, clock=clock))
        before = self.url, self.clock, self._recorder.eager
        self._turn_to(url, clock, eager)

        def restore() -> None:
            stores()
            self._turn_to(*before)

        return restore

    def _turn_to(self, url: str, clock: Clock, eager: Eager | None) -> None:
        self.url, self.clock, self._recorder.eager = url, clock, eager
        self._ids.use_clock(clock.now_ms)
        self._link.waits = isinstance(clock, SystemClock)
        if self.crypto is not None:
            self.crypto.now_ms = clock.now_ms

    def watch_waits(self, noticed: Callable[[Task], None]) -> None:
        """Has this called with each task that a caller has waited for some seconds, again and again: for workers."""
        self._link.on_long_wait = noticed

    def close(self) -> None:
        """Closes the store and ends the background thread of this process; both come back on the next use."""
        if self._stores.peek() is not None:
            self._portal.run(_close(self._stores))
        self._portal.close()

    async def aclose(self) -> None:
        """As `close`, for async callers."""
        await _close(self._stores)
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    if not TYPE_CHECKING:  # or a checker would believe in every attribute

        def __getattr__(self, name: str) -> Any:
            raise habit(APP_HABITS, "Holdfast", name)

    def __repr__(self) -> str:
        return f"Holdfast({redacted(self.url)!r})"


async def _close(stores: PerProcess[Store]) -> None:
    store = stores.take()
    if store is not None:
        await store.close()


def _checked_lease_ms(lease: Duration) -> int:
    lease_ms = duration_ms(lease, "lease")
    if not _SHORTEST_LEASE_MS <= lease_ms <= _LONGEST_LEASE_MS:
        raise BadOption(f"lease: {lease!r} is out of range; it must be between 1s and 1d")
    return lease_ms


def _checked_run(run: str | None) -> Literal["process"] | None:
    if run is not None and run != "process":
        raise BadOption(f"run: {run!r} cannot be the default of an app: leave it out, or give 'process'")
    return "process" if run else None


def _checked_include(include: Sequence[TaskSet | str]) -> Sequence[TaskSet | str]:
    if isinstance(include, (str, TaskSet)):
        raise BadOption(f"include takes a list, as in include=[{include!r}]")
    return include


def _checked_max_payload(max_payload: int) -> int:
    if not isinstance(max_payload, int) or isinstance(max_payload, bool) or max_payload < 2:
        raise BadOption(f"max_payload: {max_payload!r} is not a number of bytes, such as {payload.MAX_BYTES}")
    if max_payload > payload.LARGEST_MAX_BYTES:
        raise BadOption(
            f"max_payload: {max_payload:,} is too large, the limit is {payload.LARGEST_MAX_BYTES:,} bytes; "
            "keep large data elsewhere and pass a reference"
        )
    return max_payload
