"""What the routes give: the bodies of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.core.lifecycle import Verdict
from holdfast.core.schedule import Missed, Overlap
from holdfast.core.task import Attempt, State

#: Byte for byte as it was sent; null where there is none.
AnyJson = Annotated[Raw, Meta(description="Any JSON value, or null.")]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer has in common."""


class Health(View, frozen=True, kw_only=True):
    """All is well; what is not is a problem."""

    status: Literal["ok"] = "ok"


class Identity(View, frozen=True, kw_only=True):
    """Who a token is."""

    name: str
    scopes: tuple[str, ...]
    #: Of the store behind the gateway.
    partitions: int


class PolicyView(View, frozen=True, kw_only=True):
    """How often, how long and until when a task may run."""

    max_attempts: int
    base_ms: int
    cap_ms: int
    jitter: float
    give_up_on: tuple[str, ...]
    retry_on: tuple[str, ...]
    dead_letter: bool
    timeout_ms: int | None
    hard_timeout_ms: int | None
    expires_ms: int | None


class TimingView(View, frozen=True, kw_only=True):
    """When a schedule ticks, and what becomes of ticks that are missed or meet an earlier one."""

    cron: str | None
    timezone: str
    every_ms: int | None
    jitter_ms: int
    missed: Missed
    window_ms: int
    overlap: Overlap


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


class TaskView(View, frozen=True, kw_only=True):
    """All that is known of a task."""

    task_id: str
    type: str
    queue: str
    state: State
    priority: int
    #: Attempts used, the running one included.
    attempt: int
    deliveries: int
    created_at_ms: int
    run_at_ms: int
    finished_at_ms: int | None
    worker_id: str | None
    claimed_at_ms: int | None
    lease_expires_at_ms: int | None
    cancel_requested: bool
    reason: str | None
    request_id: str | None
    headers: dict[str, str]
    policy: PolicyView
    arguments: AnyJson
    result: AnyJson
    progress: AnyJson
    #: In place of the field of that name, where its bytes are no JSON.
    arguments_base64: str | UnsetType = UNSET
    result_base64: str | UnsetType = UNSET
    progress_base64: str | UnsetType = UNSET
    #: The runs that have ended; not in lists.
    history: tuple[Attempt, ...] | UnsetType = UNSET


class TaskPage(View, frozen=True, kw_only=True):
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
