"""Bodies of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType, field

from holdfast.admin.views import AnyJson, ScheduleView, TaskView, View
from holdfast.core.lifecycle import Verdict
from holdfast.core.priority import Order
from holdfast.core.task import Attempt, State
from holdfast.stores.contract import WorkerRecord


class Health(View, frozen=True, kw_only=True):
    """All is well; what is not is a problem."""

    status: Literal["ok"] = "ok"


class Identity(View, frozen=True, kw_only=True):
    """The identity of a token."""

    name: str
    scopes: tuple[str, ...]
    #: Of the store.
    partitions: int


class PartView(View, frozen=True, kw_only=True):
    """An answer that can do without partitions that are away."""

    #: The numbers of the partitions that did not answer, and of which nothing is in here; absent if all did.
    left_out: list[int] | UnsetType = UNSET


def numbers(left_out: Iterable[int]) -> list[int] | UnsetType:
    """The partitions that were left out, in order; nothing if none was."""
    return sorted(left_out) or UNSET


# -- tasks -------------------------------------------------------------------------------------------------------


class Recorded(View, frozen=True, kw_only=True):
    """A task that is recorded, and whether this request made it."""

    task_id: str
    created: bool


class RecordedOrNot(Recorded, frozen=True, kw_only=True, omit_defaults=True):
    """The same, or why it is not: the id stands for something else."""

    conflict: str | None = None


class RecordedTasks(View, frozen=True, kw_only=True):
    """One answer for each task, in order."""

    tasks: list[RecordedOrNot]


class TaskPage(PartView, frozen=True, kw_only=True):
    """Tasks, newest first, and the cursor of the next page if there is one."""

    tasks: list[TaskView]
    cursor: str | None


class LogView(View, frozen=True, kw_only=True):
    """One line of a task's log."""

    at_ms: int
    level: str
    text: str


class HistoryView(View, frozen=True, kw_only=True):
    """The runs of a task that have ended, and its log, the first one first."""

    task_id: str
    attempts: Sequence[Attempt]
    log: list[LogView]


# -- claims ------------------------------------------------------------------------------------------------------


class ClaimedView(View, frozen=True, kw_only=True):
    """A task under a claim."""

    task_id: str
    token: str
    type: str
    queue: str
    arguments: AnyJson
    headers: dict[str, str]
    priority: int
    attempt: int
    max_attempts: int
    timeout_ms: int | None
    created_at_ms: int
    claimed_at_ms: int
    #: Unless it is extended before.
    lease_expires_at_ms: int
    arguments_base64: str | UnsetType = UNSET


class ChangeView(View, frozen=True, kw_only=True):
    """What became of a change."""

    task_id: str
    applied: bool
    #: An earlier request had done it.
    repeated: bool
    #: Why not: unknown, stale_claim, wrong_state.
    reason: str
    state: State | None

    @classmethod
    def of(cls, task_id: str, verdict: Verdict) -> ChangeView:
        """The verdict on a change of this task."""
        return cls(
            task_id=task_id,
            applied=verdict.applied,
            repeated=verdict.repeated,
            reason=verdict.reason,
            state=verdict.state,
        )


class ReservedView(View, frozen=True, kw_only=True):
    """The claimed tasks in the order in which to start them, and what became of the changes sent along."""

    claim_id: str
    tasks: list[ClaimedView]
    settled: list[ChangeView]


class SettledView(View, frozen=True, kw_only=True):
    """One answer for each change, in order."""

    changes: list[ChangeView]


class ExtensionView(View, frozen=True, kw_only=True):
    """What became of a claim."""

    task_id: str
    held: bool
    cancel_requested: bool
    reason: str


class ExtendedView(View, frozen=True, kw_only=True):
    """One answer for each claim, in order."""

    holds: list[ExtensionView]


# -- operators ---------------------------------------------------------------------------------------------------


class BulkView(PartView, frozen=True, kw_only=True):
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


class ErrorGroupsView(PartView, frozen=True, kw_only=True):
    """Dead letters by type and error, the largest group first."""

    groups: list[ErrorGroupView]
    looked_at: int
    complete: bool


class SchedulesView(PartView, frozen=True, kw_only=True):
    """All schedules, by their next occurrence."""

    schedules: list[ScheduleView]


class OccurrencesView(View, frozen=True, kw_only=True):
    """The next occurrences of a schedule, in its time zone."""

    name: str
    next: list[str]


class QueueView(PartView, frozen=True, kw_only=True):
    """A queue: its depth in every state, and how many workers serve it."""

    queue: str
    paused: bool
    order: Order
    step_ms: int
    states: Mapping[State, int]
    oldest_ready_ms: int | None
    workers: int


class QueuesView(PartView, frozen=True, kw_only=True):
    """All queues by name."""

    queues: list[QueueView]


class ScaleView(PartView, frozen=True, kw_only=True):
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


class WorkersView(PartView, frozen=True, kw_only=True):
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
