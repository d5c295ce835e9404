"""The JSON form of tasks and schedules: the same in HTTP, in `--json` of the command line and in Python.

Arguments, results and progress are JSON inside of JSON, byte for byte: they are never decoded on their way.
"""

from __future__ import annotations

import functools
from base64 import b64encode
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import asdict

from holdfast.core.payload import is_encrypted
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Missed, Overlap, Schedule
from holdfast.core.task import Attempt, State, Task, shown_progress
from holdfast.security.crypto import shown

#: Byte for byte as it was sent; null where there is none.
AnyJson = Annotated[Raw, Meta(description="Any JSON value, or null.")]

_NULL: Final = Raw(b"null")
_SPACE: Final = b" \t\r\n"
_skip = msgspec.json.Decoder(Raw).decode


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What every JSON form has in common."""


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
    result_ttl_ms: int
    dead_letter_ttl_ms: int


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


class TimingView(View, frozen=True, kw_only=True):
    """When a schedule fires, and what happens to occurrences that are missed or overlap with an earlier task."""

    cron: str | None
    timezone: str
    every_ms: int | None
    jitter_ms: int
    missed: Missed
    window_ms: int
    overlap: Overlap


class CallView(View, frozen=True, kw_only=True):
    """What each occurrence enqueues."""

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


def task_view(task: Task, *, history: bool) -> TaskView:
    """The JSON form of a task, with its history or, as in lists, without."""
    arguments, arguments_base64 = _readable(task.payload)
    result, result_base64 = _readable(task.result)
    progress, progress_base64 = json_or_base64(_shown_progress(task))
    return TaskView(
        task_id=task.task_id,
        type=task.type,
        queue=task.queue,
        state=task.state,
        priority=task.priority,
        attempt=task.attempt,
        deliveries=task.deliveries,
        created_at_ms=task.created_at_ms,
        run_at_ms=task.run_at_ms,
        finished_at_ms=task.finished_at_ms,
        worker_id=task.worker_id,
        claimed_at_ms=task.claimed_at_ms,
        lease_expires_at_ms=task.lease_expires_at_ms,
        cancel_requested=task.cancel_requested,
        reason=task.reason,
        request_id=task.request_id,
        headers=task.headers,
        policy=_policy_view(task.policy),
        arguments=arguments,
        result=result,
        progress=progress,
        arguments_base64=arguments_base64,
        result_base64=result_base64,
        progress_base64=progress_base64,
        history=task.history if history else UNSET,
    )


def schedule_view(schedule: Schedule) -> ScheduleView:
    """The JSON form of a schedule."""
    call = schedule.call
    arguments, arguments_base64 = _readable(call.payload)
    return ScheduleView(
        name=schedule.name,
        timing=TimingView(**asdict(schedule.timing)),
        call=CallView(
            type=call.type,
            queue=call.queue,
            arguments=arguments,
            headers=call.headers,
            priority=call.priority,
            policy=_policy_view(call.policy),
            arguments_base64=arguments_base64,
        ),
        source=schedule.source,
        paused=schedule.paused,
        waiting=schedule.waiting,
        next_at_ms=schedule.next_at_ms,
        last_at_ms=schedule.last_at_ms,
        last_task_id=schedule.last_task_id,
        skipped_at_ms=schedule.skipped_at_ms,
        skipped_because=schedule.skipped_because,
        version=schedule.version,
    )


def json_or_base64(data: bytes | None) -> tuple[Raw, str | UnsetType]:
    """JSON as it is and nothing else, or null and the bytes as base64."""
    if data is None:
        return _NULL, UNSET
    raw = raw_json(data)
    return (raw, UNSET) if raw is not None else (_NULL, b64encode(data).decode())


def raw_json(data: bytes | None) -> Raw | None:
    """The bytes as they may stand inside of a JSON text, or None if they cannot."""
    if not data or data[0] in _SPACE or data[-1] in _SPACE:
        return None
    try:
        if not data.isascii():
            str(data, "utf-8")
        _skip(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Raw(data)


def _shown_progress(task: Task) -> bytes | None:
    if task.progress is None or task.state is not State.SUCCEEDED:
        return task.progress
    progress = shown_progress(task)
    return msgspec.json.encode(progress) if progress.log else None


@functools.lru_cache(256)
def _policy_view(policy: RunPolicy) -> PolicyView:
    return PolicyView(**asdict(policy))


def _readable(data: bytes | None) -> tuple[Raw, str | UnsetType]:
    """The same; of what is encrypted, its length."""
    return (Raw(shown(data)), UNSET) if data is not None and is_encrypted(data) else json_or_base64(data)
