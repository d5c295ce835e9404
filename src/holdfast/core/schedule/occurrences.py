"""The task that an occurrence becomes, and how a worker tells it from a copy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import occurrence_id
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Missed, Overlap, Schedule, Timing
from holdfast.core.schedule.timing import occurrences_of
from holdfast.core.task import NewTask, with_trace
from holdfast.errors import BadSchedule

#: Headers of such tasks: the name of the schedule, and the occurrence that they were made for.
SCHEDULE_HEADER, OCCURRENCE_HEADER = "schedule", "occurrence"
#: So begin the request_ids of such tasks.
OCCURRENCE_PREFIX: Final = "schedule:"
#: Header of the tasks of a signed schedule: its times, as they were signed.
TIMING_HEADER: Final = "holdfast-timing"
#: An occurrence may become a task up to this long after the next one is due; later where the timing says so.
_LATE_MS: Final = 3_600_000
#: With `overlap="queue"` an occurrence waits for the task before it.
_LATE_IN_LINE_MS: Final = 7 * 86_400_000
#: The store's clock was set back between the look at it and the enqueue.
_EARLY_MS: Final = 15_000


class SignedTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of a signed schedule, and how late they may become tasks; a client without the key cannot add any."""

    cron: str | None = None
    timezone: str = "UTC"
    every_ms: int | None = None
    late_ms: int = _LATE_MS

    @property
    def text(self) -> str:
        """As the header of the schedule's tasks has it."""
        return msgspec.json.encode(self).decode()

    def misfit(self, occurrence_ms: int, created_at_ms: int) -> str:
        """Why a task enqueued at this time, by the store's clock, is not that of this occurrence; "" if it is."""
        occurrences = occurrences_of(self._timing)
        if occurrences.after(occurrence_ms - 1) != occurrence_ms:
            return "the schedule has no such occurrence"
        if created_at_ms < occurrence_ms - _EARLY_MS:
            return "it was enqueued before its time"
        if created_at_ms - occurrence_ms > self.remembered_ms(occurrence_ms):
            return "it was enqueued too late"
        return ""

    def remembered_ms(self, occurrence_ms: int) -> int:
        """How long after its time an occurrence may become a task; the store must remember the task for that long."""
        following = occurrences_of(self._timing).after(occurrence_ms)
        until_next_ms = 0 if following is None else following - occurrence_ms
        return max(self.late_ms, until_next_ms + _LATE_MS)

    @property
    def _timing(self) -> Timing:
        return Timing(cron=self.cron, timezone=self.timezone, every_ms=self.every_ms)


def signed_timing(timing: Timing) -> SignedTiming:
    """What is signed of a timing: the rest may be changed without the key."""
    late_ms = max(_LATE_MS, timing.window_ms) if timing.missed is Missed.ALL else _LATE_MS
    if timing.overlap is Overlap.QUEUE:
        late_ms = max(late_ms, _LATE_IN_LINE_MS)
    cron, timezone, every_ms = timing.rhythm
    return SignedTiming(cron=cron, timezone=timezone, every_ms=every_ms, late_ms=late_ms)


def read_signed_timing(text: str) -> SignedTiming:
    """The timing in a header; `BadSchedule` if it is none."""
    try:
        return msgspec.json.decode(text, type=SignedTiming)
    except msgspec.MsgspecError:
        raise BadSchedule(f"{TIMING_HEADER}: {text!r:.80} is not a timing") from None


def check_signed_timing(schedule: Schedule) -> Schedule:
    """The schedule itself; `BadSchedule` if its call is signed for another timing."""
    signed = schedule.call.headers.get(TIMING_HEADER)
    if signed is not None and signed != signed_timing(schedule.timing).text:
        raise BadSchedule(
            f"schedule {schedule.name} is signed, and so are its times, missed, window and overlap: change them by the "
            "app that has the keys (--app MODULE:APP, or app.schedules.edit)"
        )
    return schedule


def task_of_occurrence(schedule: Schedule, occurrence_ms: int, partition: int) -> NewTask:
    """The task of one occurrence; its ids follow from schedule and time, so that two nodes cannot make it twice."""
    occurrence = shown_time(occurrence_ms)
    delay_ms = jitter_of(schedule.name, occurrence_ms, schedule.timing.jitter_ms)
    task = _task(
        schedule,
        occurrence_id(schedule.name, occurrence_ms, partition),
        {SCHEDULE_HEADER: schedule.name, OCCURRENCE_HEADER: occurrence},
        request_id=f"{OCCURRENCE_PREFIX}{schedule.name}@{occurrence}",
        run_at_ms=occurrence_ms + delay_ms if delay_ms else None,
    )
    signed = schedule.call.headers.get(TIMING_HEADER)
    if signed is None:
        return task
    return replace(task, policy=kept_for(task.policy, read_signed_timing(signed).remembered_ms(occurrence_ms)))


def task_on_demand(schedule: Schedule, task_id: str, trace: Mapping[str, str] | None = None) -> NewTask:
    """A task of a schedule that is run on demand, in this trace; it belongs to no occurrence."""
    task = _task(schedule, task_id, {SCHEDULE_HEADER: schedule.name})
    return replace(task, headers=with_trace(task.headers, trace))


def kept_for(policy: RunPolicy, ms: int) -> RunPolicy:
    """The policy of a task that is kept for at least this long after its end."""
    if policy.result_ttl_ms >= ms and policy.dead_letter_ttl_ms >= ms:
        return policy
    return replace(
        policy, result_ttl_ms=max(policy.result_ttl_ms, ms), dead_letter_ttl_ms=max(policy.dead_letter_ttl_ms, ms)
    )


def shown_time(occurrence_ms: int) -> str:
    """The moment in UTC, to the second, or to the millisecond where that is needed."""
    moment = datetime.fromtimestamp(occurrence_ms // 1000, UTC).replace(microsecond=occurrence_ms % 1000 * 1000)
    timespec = "milliseconds" if occurrence_ms % 1000 else "seconds"
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def jitter_of(name: str, occurrence_ms: int, jitter_ms: int) -> int:
    """How long the task of this occurrence waits: less than `jitter_ms`, and the same on every node."""
    if not jitter_ms:
        return 0
    return int.from_bytes(sha256(f"{name}@{occurrence_ms}".encode()).digest()[:8]) % jitter_ms


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
