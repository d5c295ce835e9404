"""From what a store knows to what a caller is shown."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import asdict, replace

from holdfast.admin.inspect import QueueRow
from holdfast.api.guard import Caller
from holdfast.core import sealing
from holdfast.core.lifecycle import Verdict
from holdfast.core.policy import RunPolicy
from holdfast.core.redaction import redacted_headers, redacted_json, redacted_text
from holdfast.core.schedule import Schedule
from holdfast.core.task import Claimed, Failure, Task
from holdfast.stores.contract import Discard
from holdfast.wire.operator_views import CallView, QueueView, ScheduleView
from holdfast.wire.raw import NULL, base64_text, raw_json
from holdfast.wire.views import ChangeView, ClaimedView, PolicyView, TaskView, TimingView


def shown_task(task: Task, caller: Caller, *, history: bool) -> TaskView:
    """The task; its arguments and results as far as this caller may see them."""
    task = without_secrets(task, caller)
    arguments, arguments_base64 = _for_people(task.payload)
    result, result_base64 = _for_people(task.result)
    progress, progress_base64 = _either(task.progress)
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
        policy=_shown_policy(task.policy),
        arguments=arguments,
        result=result,
        progress=progress,
        arguments_base64=arguments_base64,
        result_base64=result_base64,
        progress_base64=progress_base64,
        history=task.history if history else UNSET,
    )


def without_secrets(task: Task, caller: Caller) -> Task:
    """The task as this caller may see it."""
    if caller.sees_secrets(task.queue):
        return task
    return replace(
        task,
        payload=redacted_json(task.payload) or b"{}",
        result=redacted_json(task.result),
        progress=redacted_json(task.progress),
        headers=redacted_headers(task.headers),
        reason=None if task.reason is None else redacted_text(task.reason),
        history=tuple(replace(run, error=_without_secrets(run.error)) for run in task.history),
    )


def _without_secrets(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    log = tuple(replace(line, text=redacted_text(line.text)) for line in failure.log)
    return Failure(failure.type, redacted_text(failure.message), redacted_text(failure.traceback), log)


def discard_without_secrets(discard: Discard, caller: Caller) -> Discard:
    """The record of a discarded task as this caller may see it."""
    if caller.sees_secrets(discard.queue):
        return discard
    return replace(discard, payload=redacted_json(discard.payload) or b"{}", error=redacted_text(discard.error))


def schedule_without_secrets(schedule: Schedule, caller: Caller) -> Schedule:
    """The schedule as this caller may see it."""
    call = schedule.call
    if caller.sees_secrets(call.queue):
        return schedule
    payload, headers = redacted_json(call.payload) or b"{}", redacted_headers(call.headers)
    return replace(schedule, call=replace(call, payload=payload, headers=headers))


def shown_claim(task: Claimed, lease_ms: int) -> ClaimedView:
    """A claimed task, whole: its worker needs it."""
    arguments, arguments_base64 = _either(task.payload)
    return ClaimedView(
        task_id=task.task_id,
        token=task.token,
        type=task.type,
        queue=task.queue,
        arguments=arguments,
        headers=task.headers,
        priority=task.priority,
        attempt=task.attempt,
        max_attempts=task.policy.max_attempts,
        timeout_ms=task.policy.timeout_ms,
        created_at_ms=task.created_at_ms,
        claimed_at_ms=task.claimed_at_ms,
        lease_expires_at_ms=task.claimed_at_ms + lease_ms,
        arguments_base64=arguments_base64,
    )


def shown_changes(task_ids: Sequence[str], verdicts: Sequence[Verdict]) -> list[ChangeView]:
    """One line for each change."""
    return [ChangeView.of(task_id, verdict) for task_id, verdict in zip(task_ids, verdicts, strict=True)]


def shown_schedule(schedule: Schedule, caller: Caller) -> ScheduleView:
    """The schedule; its arguments as far as this caller may see them."""
    call = schedule_without_secrets(schedule, caller).call
    arguments, arguments_base64 = _for_people(call.payload)
    return ScheduleView(
        name=schedule.name,
        timing=TimingView(**asdict(schedule.timing)),
        call=CallView(
            type=call.type,
            queue=call.queue,
            arguments=arguments,
            headers=call.headers,
            priority=call.priority,
            policy=_shown_policy(call.policy),
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


def shown_queue(row: QueueRow) -> QueueView:
    """The queue."""
    return QueueView(**asdict(row))


@functools.lru_cache(256)
def _shown_policy(policy: RunPolicy) -> PolicyView:
    return PolicyView(**asdict(policy))


def _for_people(data: bytes | None) -> tuple[Raw, str | UnsetType]:
    """The same; of what is encrypted, its length."""
    return (Raw(sealing.shown(data)), UNSET) if data is not None and sealing.is_sealed(data) else _either(data)


def _either(data: bytes | None) -> tuple[Raw, str | UnsetType]:
    """JSON as it is, or other bytes as base64."""
    if data is None:
        return NULL, UNSET
    raw = raw_json(data)
    return (raw, UNSET) if raw is not None else (NULL, base64_text(data))
