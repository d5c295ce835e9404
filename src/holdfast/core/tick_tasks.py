"""The task that a tick becomes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256

from msgspec.structs import replace

from holdfast.core.schedule import Schedule
from holdfast.core.task import NewTask, with_trace

#: Headers of such tasks: the name of the schedule, and the tick that they were made for.
SCHEDULE_HEADER, TICK_HEADER = "schedule", "tick"


def task_of_tick(schedule: Schedule, tick_ms: int, task_id: str) -> NewTask:
    """The task of one tick; its request_id names both, so that no two nodes can make it twice."""
    tick = shown_tick(tick_ms)
    delay_ms = jitter_of(schedule.name, tick_ms, schedule.timing.jitter_ms)
    return _task(
        schedule,
        task_id,
        {SCHEDULE_HEADER: schedule.name, TICK_HEADER: tick},
        request_id=f"schedule:{schedule.name}@{tick}",
        run_at_ms=tick_ms + delay_ms if delay_ms else None,
    )


def task_on_demand(schedule: Schedule, task_id: str, trace: Mapping[str, str] | None = None) -> NewTask:
    """The task of a schedule that somebody wants to run now, in this trace; it stands for no tick."""
    task = _task(schedule, task_id, {SCHEDULE_HEADER: schedule.name})
    return replace(task, headers=with_trace(task.headers, trace))


def shown_tick(tick_ms: int) -> str:
    """The moment in UTC, to the second, or to the millisecond where that is needed."""
    moment = datetime.fromtimestamp(tick_ms // 1000, UTC).replace(microsecond=tick_ms % 1000 * 1000)
    timespec = "milliseconds" if tick_ms % 1000 else "seconds"
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def jitter_of(name: str, tick_ms: int, jitter_ms: int) -> int:
    """How long the task of this tick waits: less than `jitter_ms`, and the same whoever asks."""
    if not jitter_ms:
        return 0
    return int.from_bytes(sha256(f"{name}@{tick_ms}".encode()).digest()[:8]) % jitter_ms


def _task(
    schedule: Schedule,
    task_id: str,
    headers: dict[str, str],
    *,
    request_id: str | None = None,
    run_at_ms: int | None = None,
) -> NewTask:
    call = schedule.call
    return NewTask(
        task_id=task_id,
        type=call.type,
        queue=call.queue,
        payload=call.payload,
        headers={**call.headers, **headers},
        request_id=request_id,
        priority=call.priority,
        policy=call.policy,
        run_at_ms=run_at_ms,
    )
