"""Bodies of the routes for operators, and the queries of all routes."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from holdfast.core.priority import Order
from holdfast.core.schedule.record import Missed, Overlap
from holdfast.core.task import State
from holdfast.server.requests import (
    CURSOR,
    DURATION,
    Body,
    Duration,
    Headers,
    Id,
    JsonObject,
    KeptFor,
    Priority,
    Queue,
    Reason,
    RetryBody,
    TaskId,
    TimeLimit,
    Ttl,
    TypeName,
)
from holdfast.stores.contract import MAX_BATCH
from holdfast.stores.remote.limits import LARGEST_COUNT, LONGEST_CURSOR, MAX_BULK, MAX_QUEUES, MAX_TYPES

# -- dead letters ------------------------------------------------------------------------------------------------


class DeadFilter(Body, frozen=True, kw_only=True):
    """Which dead letters; what is left out does not restrict."""

    queue: Queue | None = None
    type: TypeName | None = None
    error_type: Id | None = None


class ReplayBody(Body, frozen=True, kw_only=True):
    """Either these dead letters or those that match, at most `limit`, and not more than `rate` a second."""

    task_ids: Annotated[list[TaskId], Meta(max_length=MAX_BATCH)] | UnsetType = UNSET
    filter: DeadFilter | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_BULK)] = 1_000
    rate: Annotated[float, Meta(gt=0)] | None = None


class DiscardManyBody(ReplayBody, frozen=True, kw_only=True):
    """The same, and why."""

    reason: Reason


# -- settings ----------------------------------------------------------------------------------------------------


class OrderBody(Body, frozen=True, kw_only=True):
    """What priority is worth in a queue."""

    order: Order
    step: TimeLimit | None = None


class ConcurrencyBody(Body, frozen=True, kw_only=True):
    """Tasks at once in each process; null: as it was started."""

    concurrency: Annotated[int, Meta(ge=1, le=MAX_BATCH)] | None


class AnnounceBody(Body, frozen=True, kw_only=True):
    """What a worker says of itself, again before `ttl` is over; a `ttl` of 0 takes it off the list."""

    queues: Annotated[list[Queue], Meta(min_length=1, max_length=MAX_QUEUES)]
    types: Annotated[list[TypeName], Meta(max_length=MAX_TYPES)]
    concurrency: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    running: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    host: Id = "unknown"
    pid: Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] = 0
    version: Id = "unknown"
    ttl: Ttl = "60s"


class ScheduleBody(Body, frozen=True, kw_only=True):
    """What a schedule enqueues, and when: `cron` or `every`."""

    type: TypeName
    arguments: JsonObject | UnsetType = UNSET
    queue: Queue = "default"
    priority: Priority = 0
    headers: Headers = field(default_factory=dict)
    retry: RetryBody | UnsetType = UNSET
    timeout: TimeLimit | UnsetType = UNSET
    hard_timeout: TimeLimit | UnsetType = UNSET
    expires: TimeLimit | UnsetType = UNSET
    result_ttl: KeptFor | UnsetType = UNSET
    dead_letter_ttl: KeptFor | UnsetType = UNSET
    cron: Annotated[str, Meta(max_length=500)] | None = None
    every: Duration | None = None
    timezone: Annotated[str, Meta(max_length=100)] | None = None
    jitter: Duration | None = None
    missed: Missed | None = None
    window: Duration | None = None
    overlap: Overlap | None = None


# -- queries -----------------------------------------------------------------------------------------------------


class TaskQuery(Body, frozen=True, kw_only=True):
    """How long to wait for the end of the task."""

    wait: Annotated[str, Meta(extra_json_schema={"pattern": DURATION})] = "0s"


class TasksQuery(Body, frozen=True, kw_only=True):
    """Which tasks; what is left out does not restrict."""

    state: list[State] = field(default_factory=list)
    queue: Queue | None = None
    type: TypeName | None = None
    worker_id: Id | None = None
    error_type: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 50
    cursor: Annotated[str, Meta(max_length=LONGEST_CURSOR, pattern=CURSOR)] | None = None


class DeadQuery(DeadFilter, frozen=True, kw_only=True):
    """Which dead letters, and which page of them."""

    limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 50
    cursor: Annotated[str, Meta(max_length=LONGEST_CURSOR, pattern=CURSOR)] | None = None


class NextQuery(Body, frozen=True, kw_only=True):
    """How many occurrences."""

    count: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 5


class ScaleQuery(Body, frozen=True, kw_only=True):
    """How many tasks at once one worker is good for."""

    per_worker: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
