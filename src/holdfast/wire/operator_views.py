"""What the routes for operators give."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType, field

from holdfast.core.priority import Order
from holdfast.core.task import State
from holdfast.stores.contract import WorkerRecord
from holdfast.wire.views import AnyJson, ChangeView, PolicyView, TimingView, View

# -- operators ---------------------------------------------------------------------------------------------------


class BulkView(View, frozen=True, kw_only=True):
    """How many were meant and how many were changed; each of them, if they were named."""

    matched: int
    changed: int
    tasks: list[ChangeView] = field(default_factory=list)


class ErrorGroupView(View, frozen=True, kw_only=True):
    """Dead letters of one task type that ended with the same class of error."""

    type: str
    error_type: str
    count: int
    #: Of the newest of them.
    message: str
    newest_task_id: str
    newest_at_ms: int | None


class ErrorGroupsView(View, frozen=True, kw_only=True):
    """Dead letters by type and error, the largest group first."""

    groups: list[ErrorGroupView]
    looked_at: int
    complete: bool


class CallView(View, frozen=True, kw_only=True):
    """What each tick enqueues."""

    type: str
    queue: str
    arguments: AnyJson
    headers: dict[str, str]
    priority: int
    policy: PolicyView
    arguments_base64: str | UnsetType = UNSET


class ScheduleView(View, frozen=True, kw_only=True):
    """A schedule."""

    name: str
    timing: TimingView
    call: CallView
    source: str
    paused: bool
    waiting: bool
    next_at_ms: int | None
    last_at_ms: int | None
    last_task_id: str | None
    skipped_at_ms: int | None
    skipped_because: str
    version: int


class SchedulesView(View, frozen=True, kw_only=True):
    """All schedules, the soonest to tick first."""

    schedules: list[ScheduleView]


class TicksView(View, frozen=True, kw_only=True):
    """The next ticks of a schedule, in its time zone."""

    name: str
    next: list[str]


class QueueView(View, frozen=True, kw_only=True):
    """A queue: its depth in every state, and how many workers serve it."""

    queue: str
    paused: bool
    order: Order
    step_ms: int
    states: Mapping[State, int]
    oldest_ready_ms: int | None
    workers: int


class QueuesView(View, frozen=True, kw_only=True):
    """All queues by name."""

    queues: list[QueueView]


class ScaleView(View, frozen=True, kw_only=True):
    """What an autoscaler wants to know of a queue."""

    queue: str
    #: Tasks that wait for a worker or are with one.
    backlog: int
    ready: int
    running: int
    oldest_ready_seconds: float
    workers: int
    #: As many workers as the backlog needs.
    desired: int


class WorkersView(View, frozen=True, kw_only=True):
    """Workers, the living first."""

    workers: list[WorkerRecord]


class ConcurrencyView(View, frozen=True, kw_only=True):
    """The worker that was told."""

    worker_id: str
    concurrency: int | None


class OrdersView(View, frozen=True, kw_only=True):
    """What a worker is asked to do; null: nothing."""

    concurrency: int | None


class PartitionView(View, frozen=True, kw_only=True):
    """One partition; what could not be asked is null."""

    partition: int
    server: str
    owner: str | None
    epoch: int | None
    depth: int | None
    error: str | None


class PartitionsView(View, frozen=True, kw_only=True):
    """All partitions in order, and the version of their map."""

    version: int
    partitions: list[PartitionView]
