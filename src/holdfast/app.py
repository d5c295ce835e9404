"""The app: the one place that wires the parts together."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload
from zoneinfo import ZoneInfo

from holdfast.clock import SystemClock
from holdfast.core import payload
from holdfast.core.arguments import result_decoder
from holdfast.core.definition import changed_timing
from holdfast.core.durations import Duration, duration_ms
from holdfast.core.ids import IdSource, check_task_id
from holdfast.core.keys import Keys
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.core.retry import Retry
from holdfast.core.schedule import Schedule, Timing
from holdfast.errors import BadName, BadOption
from holdfast.observe.tracing import Traces, check_traces
from holdfast.producer.handle import TaskHandle
from holdfast.producer.link import Link
from holdfast.producer.options import Options, changed
from holdfast.producer.portal import PerProcess, Portal
from holdfast.producer.queues import Queues
from holdfast.producer.recorder import Prepared, Recorder
from holdfast.producer.schedules import (
    Arguments,
    CallOptions,
    DeclaredOptions,
    ScheduleDecorator,
    check_known,
    scheduled,
    split,
)
from holdfast.producer.sealing import sealing_of
from holdfast.producer.surroundings import Surroundings
from holdfast.producer.task_type import AsyncTaskType, RunIn, TaskDecorator, TaskType, declare
from holdfast.schedules import Schedules
from holdfast.stores.contract import Retention, Store
from holdfast.stores.open import DEFAULT_URL, open_store, redacted

P = ParamSpec("P")
R = TypeVar("R")

#: Shorter leases would be lost to a busy machine, longer ones leave the tasks of a dead worker lying.
_SHORTEST_LEASE_MS, _LONGEST_LEASE_MS = 1_000, 86_400_000


class Holdfast(Surroundings):
    """An app: its task types, and the store that their tasks are kept in.

    Making one opens nothing; the store is opened on first use, and again in a forked child.
    """

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
    ) -> None:
        self.url = url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL
        self.lease_ms = _checked_lease_ms(lease)
        self.retention = _retention(result_ttl, dead_letter_ttl)
        self.max_payload = _checked_max_payload(max_payload)
        self.traces = check_traces(traces)
        sealing = sealing_of(signing, encryption, self.max_payload)
        self._options = changed(Options(sealing=sealing), queue=queue, retry=retry)
        self._task_types: dict[str, TaskType[..., Any]] = {}
        self._schedules: dict[str, Schedule] = {}
        self._stores = PerProcess(functools.partial(open_store, self.url))
        self._portal = Portal(functools.partial(_close, self._stores))
        self._link = Link(self._stores.get, self._portal, _explain, sealing)
        self._ids = IdSource(SystemClock().now_ms, os.urandom)
        self._recorder = Recorder(self._link, self._ids)
        # Handles and task types may outlive the app: what they share is let go with the last of them.
        weakref.finalize(self._link, self._portal.abandon).atexit = False

    @property
    def store(self) -> Store:
        """The store of this process, opened on first use."""
        return self._stores.get()

    @property
    def task_types(self) -> Mapping[str, TaskType[..., Any]]:
        """The declared task types, by name."""
        return MappingProxyType(self._task_types)

    @property
    def queues(self) -> Queues:
        """The queues of the store: what waits in them, whether they go on, what priority is worth in them."""
        return Queues(self._link)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store, to look at, make and change."""
        return Schedules(self._link, self._ids, self._task_types)

    @property
    def declared_schedules(self) -> tuple[Schedule, ...]:
        """The schedules that the code declares; a worker that starts brings the store in line with them."""
        return tuple(self._schedules.values())

    # -- declaring ------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R | Snooze | Cancel]], /) -> AsyncTaskType[P, R]: ...

    @overload
    def task(self, function: Callable[P, R | Snooze | Cancel], /) -> TaskType[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        hard_timeout: Duration | None = None,
        expires: Duration | None = None,
        run: RunIn | None = None,
    ) -> TaskDecorator: ...

    def task(  # noqa: PLR0913  (the options that a task may have)
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        hard_timeout: Duration | None = None,
        expires: Duration | None = None,
        run: RunIn | None = None,
    ) -> Any:
        """Declares a function as a task type; its options hold for every call that does not say otherwise."""
        options = changed(
            self._options,
            queue=queue,
            priority=priority,
            retry=retry,
            timeout=timeout,
            hard_timeout=hard_timeout,
            expires=expires,
        )
        if function is None:
            return lambda declared: self._declare(declared, name, options, run)
        return self._declare(function, name, options, run)

    def _declare(
        self, function: Callable[..., Any], name: str | None, options: Options, run: RunIn | None
    ) -> TaskType[..., Any]:
        if not callable(function):
            raise BadOption(f"@app.task takes a function, not {function!r}; options need names, as in queue='images'")
        task_type = declare(self._recorder, function, name, options, self.max_payload, run)
        if task_type.name in self._task_types:
            raise BadName(f"task type {task_type.name!r} is declared twice in this app: give one of them another name=")
        self._task_types[task_type.name] = task_type
        return task_type

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
        ticks, calls = split(options)
        return self._schedule(changed_timing(Timing(), cron=line, timezone=timezone, **ticks), name, args, calls)

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
        ticks, calls = split(options)
        return self._schedule(changed_timing(Timing(), every=interval, **ticks), name, args, calls)

    def _schedule(
        self, timing: Timing, name: str | None, args: Arguments | None, calls: CallOptions
    ) -> ScheduleDecorator:
        def declare_schedule(function: Any, /) -> Any:
            declared = function if isinstance(function, TaskType) else self.task(name=name, **calls)(function)
            check_known(declared.name, self._task_types)
            schedule = scheduled(name, declared, args, timing, CallOptions() if declared is not function else calls)
            if schedule.name in self._schedules:
                raise BadName(f"schedule {schedule.name!r} is declared twice in this app: give one of them a name=")
            self._schedules[schedule.name] = schedule
            return declared

        return declare_schedule

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

    # -- life -----------------------------------------------------------------------------------------------

    def watch_stores(self, observed: Callable[[Store], Store]) -> None:
        """Every store that is opened from now on is used through what this makes of it: for metrics."""
        self._stores.through(observed)

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

    def __repr__(self) -> str:
        return f"Holdfast({redacted(self.url)!r})"


async def _close(stores: PerProcess[Store]) -> None:
    store = stores.take()
    if store is not None:
        await store.close()


async def _explain(store: Store, task_id: str) -> str:
    from holdfast.admin.why import why

    return (await why(store, task_id)).text


def _checked_lease_ms(lease: Duration) -> int:
    lease_ms = duration_ms(lease, "lease")
    if not _SHORTEST_LEASE_MS <= lease_ms <= _LONGEST_LEASE_MS:
        raise BadOption(f"lease: {lease!r} is out of range; it must be between 1s and 1d")
    return lease_ms


def _retention(result_ttl: Duration, dead_letter_ttl: Duration) -> Retention:
    result_ms = duration_ms(result_ttl, "result_ttl")
    return Retention(
        succeeded_ms=result_ms,
        failed_ms=result_ms,
        cancelled_ms=result_ms,
        dead_lettered_ms=duration_ms(dead_letter_ttl, "dead_letter_ttl"),
    )


def _checked_max_payload(max_payload: int) -> int:
    if not isinstance(max_payload, int) or isinstance(max_payload, bool) or max_payload < 2:
        raise BadOption(f"max_payload: {max_payload!r} is not a number of bytes, such as {payload.MAX_BYTES}")
    return max_payload
