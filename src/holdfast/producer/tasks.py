"""`app.tasks` and `app.dead`: what is in the store, from the code of an app."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, Unpack

import msgspec

from holdfast.admin import actions, inspect
from holdfast.admin.copies import rerun
from holdfast.admin.search import SCAN_LIMIT, Filter, error_class, every_match, search
from holdfast.clock import Clock
from holdfast.core.arguments import result_decoder
from holdfast.core.durations import Duration, duration_ms
from holdfast.core.ids import IdSource, check_task_id
from holdfast.core.lifecycle import Verdict
from holdfast.core.names import check_queue, check_type
from holdfast.core.retry import error_name
from holdfast.core.task import State
from holdfast.errors import BadOption, Refused
from holdfast.producer.handle import TaskHandle, unknown_task
from holdfast.producer.options import epoch_ms
from holdfast.producer.portal import StoreLink
from holdfast.producer.task_info import TaskInfo, task_info
from holdfast.producer.task_type import TaskType
from holdfast.stores.contract import MAX_BATCH, Query

#: A task by its id, its handle, or as it was listed.
TaskRef = str | TaskHandle[Any] | TaskInfo

#: How many tasks a list has unless `limit` says otherwise.
DEFAULT_LIMIT: Final = 50
#: Tasks that are counted one by one, since no counter of the store has them, are counted up to this many.
COUNT_LIMIT: Final = 100_000

_log = logging.getLogger("holdfast")


class DeadLetterFilters(TypedDict, total=False):
    """Which dead letters; what is not given does not restrict."""

    queue: str
    type: str | TaskType[..., Any]
    #: The class of the last error: `ValueError`, "ValueError" or "shop.OutOfStock".
    error: builtins.type[BaseException] | str
    #: From this time on, or for this long: "1h".
    since: datetime | Duration
    #: Before this time, or longer ago than this.
    until: datetime | Duration
    #: Arguments by name (`user.id` for one inside of another), and the value that each has.
    args: Mapping[str, Any]


class TaskFilters(DeadLetterFilters, total=False):
    """Which tasks; what is not given does not restrict."""

    #: One state or several: "ready", State.READY, ["ready", "claimed"].
    state: str | Iterable[str]


class Tasks:
    """What `app.tasks` gives: the tasks of the store, those of other apps included."""

    __slots__ = ("_clock", "_ids", "_link")

    def __init__(self, link: StoreLink, clock: Clock, ids: IdSource) -> None:
        self._link = link
        self._clock = clock
        self._ids = ids

    async def alist(self, *, limit: int = DEFAULT_LIMIT, **filters: Unpack[TaskFilters]) -> list[TaskInfo]:
        """The newest tasks that match, newest first; at most `limit`, up to 1,000."""
        query, given = _search_of(filters, self._clock, "created")
        return await _listed(self._link, query, given, limit)

    async def aget(self, task: TaskRef) -> TaskInfo:
        """The task; `UnknownTask` if the store does not know it."""
        (found,) = await astatus_many(self._link, [task])
        if found is None:
            raise unknown_task(id_of(task))
        return found

    async def acount(self, **filters: Unpack[TaskFilters]) -> int:
        """How many tasks match; up to 100,000, unless only `state` and `queue` are given."""
        query, given = _search_of(filters, self._clock, "created")
        if given.is_empty and query.type is None and query.error_type is None:
            counted = await self._link.store().counts()
            return sum(
                number
                for queue in counted
                if query.queue in {None, queue.queue}
                for state, number in queue.states.items()
                if query.states is None or state in query.states
            )

        matches = every_match(self._link.store(), query, given, COUNT_LIMIT)
        return sum([len(tasks) async for tasks in matches])

    async def awhy(self, task: TaskRef) -> str:
        """Why the task is in its current state, in words; `UnknownTask` if the store does not know it."""
        return await self._link.why(id_of(task))

    async def acancel(self, *tasks: TaskRef, reason: str = "cancelled") -> None:
        """Keeps waiting tasks from running and tells running ones to stop.

        `UnknownTask` or `Refused` names one that has ended; the others are cancelled.
        """
        ids = [id_of(task) for task in tasks]
        _refuse(ids, await actions.cancel(self._link.store(), ids, reason), "cancelled")

    async def arun_now(self, *tasks: TaskRef) -> None:
        """Makes delayed tasks, and those that wait for another attempt, due at once.

        `UnknownTask` or `Refused` names one that does not wait; the others are due.
        """
        ids = [id_of(task) for task in tasks]
        _refuse(ids, await actions.run_now(self._link.store(), ids), "run now")

    async def areschedule(self, *tasks: TaskRef, run_at: datetime | None = None, delay: Duration | None = None) -> None:
        """Has waiting tasks run at another time; attempts and arguments stay as they are.

        `UnknownTask` or `Refused` names one that does not wait; the others are rescheduled.
        """
        if (run_at is None) == (delay is None):
            raise BadOption("reschedule: give the new time, either run_at or delay")
        at_ms = self._clock.now_ms() + duration_ms(delay, "delay") if delay is not None else 0
        if run_at is not None:
            at_ms = epoch_ms(run_at, "run_at")
        ids = [id_of(task) for task in tasks]
        _refuse(ids, await actions.reschedule(self._link.store(), ids, at_ms), "rescheduled")

    async def arerun(self, task: TaskRef) -> TaskHandle[Any]:
        """Enqueues a finished task again as a new one with the same arguments and policy; `Refused` before its end."""
        new = await rerun(self._link.store(), id_of(task), self._ids.task_id, self._link.crypto)
        return TaskHandle(self._link, new, result_decoder(Any, f"task {new}"))

    # -- the same for sync callers --------------------------------------------------------------------------

    def list(self, *, limit: int = DEFAULT_LIMIT, **filters: Unpack[TaskFilters]) -> builtins.list[TaskInfo]:
        """The newest tasks that match, newest first; at most `limit`, up to 1,000."""
        return self._link.run(self.alist(limit=limit, **filters))

    def get(self, task: TaskRef) -> TaskInfo:
        """The task; `UnknownTask` if the store does not know it."""
        return self._link.run(self.aget(task))

    def count(self, **filters: Unpack[TaskFilters]) -> int:
        """How many tasks match; up to 100,000, unless only `state` and `queue` are given."""
        return self._link.run(self.acount(**filters))

    def why(self, task: TaskRef) -> str:
        """Why the task is in its current state, in words; `UnknownTask` if the store does not know it."""
        return self._link.run(self.awhy(task))

    def cancel(self, *tasks: TaskRef, reason: str = "cancelled") -> None:
        """Keeps waiting tasks from running and tells running ones to stop.

        `UnknownTask` or `Refused` names one that has ended; the others are cancelled.
        """
        self._link.run(self.acancel(*tasks, reason=reason))

    def run_now(self, *tasks: TaskRef) -> None:
        """Makes delayed tasks, and those that wait for another attempt, due at once.

        `UnknownTask` or `Refused` names one that does not wait; the others are due.
        """
        self._link.run(self.arun_now(*tasks))

    def reschedule(self, *tasks: TaskRef, run_at: datetime | None = None, delay: Duration | None = None) -> None:
        """Has waiting tasks run at another time; attempts and arguments stay as they are.

        `UnknownTask` or `Refused` names one that does not wait; the others are rescheduled.
        """
        self._link.run(self.areschedule(*tasks, run_at=run_at, delay=delay))

    def rerun(self, task: TaskRef) -> TaskHandle[Any]:
        """Enqueues a finished task again as a new one with the same arguments and policy; `Refused` before its end."""
        return self._link.run(self.arerun(task))


class DeadLetters:
    """What `app.dead` gives: tasks that ran out of attempts, or failed with an error that is not retried."""

    __slots__ = ("_clock", "_link")

    def __init__(self, link: StoreLink, clock: Clock) -> None:
        self._link = link
        self._clock = clock

    async def alist(self, *, limit: int = DEFAULT_LIMIT, **filters: Unpack[DeadLetterFilters]) -> list[TaskInfo]:
        """The dead letters that match, the newest tasks first; `since` and `until` compare when they died."""
        query, given = _search_of({**filters, "state": State.DEAD_LETTERED}, self._clock, "finished")
        return await _listed(self._link, query, given, limit)

    async def aget(self, task: TaskRef) -> TaskInfo:
        """The dead letter; `UnknownTask` if the store does not know it, `Refused` if it is not one."""
        (found,) = await astatus_many(self._link, [task])
        if found is None:
            raise unknown_task(id_of(task))
        if found.state is not State.DEAD_LETTERED:
            raise Refused(f"task {found.task_id} is {found.state}: it is not a dead letter")
        return found

    async def areplay(self, *tasks: TaskRef) -> None:
        """Puts dead letters back into their queues with fresh attempts.

        `UnknownTask` or `Refused` names one that is not a dead letter (any more); the others are replayed.
        """
        ids = [id_of(task) for task in tasks]
        _refuse(ids, await actions.replay(self._link.store(), ids), "replayed")

    async def adiscard(self, *tasks: TaskRef, reason: str) -> None:
        """Deletes dead letters; the store keeps a record of each, with its arguments and the reason.

        `UnknownTask` or `Refused` names one that is not a dead letter (any more); the others are discarded.
        """
        ids = [id_of(task) for task in tasks]
        _refuse(ids, await actions.discard(self._link.store(), ids, reason), "discarded")

    # -- the same for sync callers --------------------------------------------------------------------------

    def list(self, *, limit: int = DEFAULT_LIMIT, **filters: Unpack[DeadLetterFilters]) -> builtins.list[TaskInfo]:
        """The dead letters that match, the newest tasks first; `since` and `until` compare when they died."""
        return self._link.run(self.alist(limit=limit, **filters))

    def get(self, task: TaskRef) -> TaskInfo:
        """The dead letter; `UnknownTask` if the store does not know it, `Refused` if it is not one."""
        return self._link.run(self.aget(task))

    def replay(self, *tasks: TaskRef) -> None:
        """Puts dead letters back into their queues with fresh attempts.

        `UnknownTask` or `Refused` names one that is not a dead letter (any more); the others are replayed.
        """
        self._link.run(self.areplay(*tasks))

    def discard(self, *tasks: TaskRef, reason: str) -> None:
        """Deletes dead letters; the store keeps a record of each, with its arguments and the reason.

        `UnknownTask` or `Refused` names one that is not a dead letter (any more); the others are discarded.
        """
        self._link.run(self.adiscard(*tasks, reason=reason))


async def astatus_many(link: StoreLink, tasks: Iterable[TaskRef]) -> list[TaskInfo | None]:
    """Each task in order, None for one that the store does not know; one call of the store for 1,000 of them."""
    ids = [id_of(task) for task in tasks]
    found: list[TaskInfo | None] = []
    for start in range(0, len(ids), MAX_BATCH):
        batch = ids[start : start + MAX_BATCH]
        records = await link.store().get(batch)
        found += [None if record is None else task_info(link, record) for record in records]
    return found


def id_of(task: TaskRef) -> str:
    """The id of a task that is given by its id, by its handle, or as it was listed."""
    return check_task_id(task.task_id if isinstance(task, (TaskHandle, TaskInfo)) else task)


async def _listed(link: StoreLink, query: Query, given: Filter, limit: int) -> list[TaskInfo]:
    store = link.store()
    found = await search(store, _limited(query, limit), given)
    page = await inspect.with_history(store, found.page)
    if found.cut_short:
        _log.warning(
            "a list of tasks ended after %s were compared, there may be more: narrow it with state, queue, type, "
            "error or since",
            f"{SCAN_LIMIT:,}",
        )
    return [task_info(link, task) for task in page.tasks]


def _limited(query: Query, limit: int) -> Query:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_BATCH:
        raise BadOption(f"limit: {limit!r} is refused; a list has 1 to {MAX_BATCH:,} tasks")
    return msgspec.structs.replace(query, limit=limit)


def _search_of(filters: Mapping[str, Any], clock: Clock, time: Literal["created", "finished"]) -> tuple[Query, Filter]:
    """What the store is asked, and what is compared with each task that it finds."""
    unknown = filters.keys() - TaskFilters.__optional_keys__
    if unknown:
        known = ", ".join(sorted(TaskFilters.__optional_keys__))
        raise BadOption(f"there is no filter {min(unknown)!r}; there are {known}, and limit for lists")
    queue, kind, error = filters.get("queue"), filters.get("type"), filters.get("error")
    query = Query(
        states=_states(filters.get("state")),
        queue=None if queue is None else check_queue(queue),
        type=None if kind is None else check_type(kind.name if isinstance(kind, TaskType) else kind),
        error_type=None if error is None else _error_class(error),
    )
    now_ms = clock.now_ms()
    given = Filter(
        since_ms=_time_ms(filters.get("since"), "since", now_ms),
        until_ms=_time_ms(filters.get("until"), "until", now_ms),
        time=time,
        args=filters.get("args") or {},
    )
    return query, given


def _states(state: str | Iterable[str] | None) -> frozenset[State] | None:
    if state is None:
        return None
    try:
        return frozenset({State(each) for each in ([state] if isinstance(state, str) else state)})
    except (ValueError, TypeError):
        raise BadOption(f"state: {state!r} is not one of {', '.join(State)}, or several of them") from None


def _error_class(error: type[BaseException] | str) -> str:
    if isinstance(error, type):
        return error_name(error)
    if not isinstance(error, str):
        raise BadOption(f"error: {error!r} is neither an exception class nor its name")
    return error_class(error)


def _time_ms(time: datetime | Duration | None, option: str, now_ms: int) -> int | None:
    if time is None:
        return None
    return epoch_ms(time, option) if isinstance(time, datetime) else now_ms - duration_ms(time, option)


def _refuse(ids: Sequence[str], verdicts: Sequence[Verdict], verb: str) -> None:
    for task_id, verdict in zip(ids, verdicts, strict=True):
        error = actions.refusal(task_id, verdict, verb)
        if error is not None:
            raise error
