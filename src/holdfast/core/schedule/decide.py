"""What becomes of a schedule that is due, changed or declared anew."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from itertools import islice, takewhile
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from holdfast.core.durations import Duration, duration_ms
from holdfast.core.names import check_queue
from holdfast.core.priority import check_priority
from holdfast.core.schedule.occurrences import check_signed_timing
from holdfast.core.schedule.record import Missed, Overlap, Schedule, ScheduledCall, Timing, is_bound
from holdfast.core.schedule.timing import Occurrences, occurrences_of
from holdfast.errors import BadDuration, BadSchedule

_Choice = TypeVar("_Choice", bound=StrEnum)


def changed_timing(
    timing: Timing,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    timezone: str | ZoneInfo | None = None,
    jitter: Duration | None = None,
    missed: str | None = None,
    window: Duration | None = None,
    overlap: str | None = None,
) -> Timing:
    """The timing with that replaced which is given, checked as a whole; a cron line takes the place of an interval."""
    if cron is not None and every is not None:
        raise BadSchedule("cron and every exclude each other: give one of them")
    changes: dict[str, Any] = {}
    if cron is not None:
        changes.update(cron=" ".join(cron.split()) if isinstance(cron, str) else cron, every_ms=None)
    if every is not None:
        changes.update(every_ms=_milliseconds(every, "every"), cron=None, timezone="UTC")
    if timezone is not None:
        changes["timezone"] = timezone.key if isinstance(timezone, ZoneInfo) else timezone
    if jitter is not None:
        changes["jitter_ms"] = _milliseconds(jitter, "jitter")
    if missed is not None:
        changes["missed"] = _choice(Missed, missed, "missed")
    if window is not None:
        changes["window_ms"] = _milliseconds(window, "window")
    if overlap is not None:
        changes["overlap"] = _choice(Overlap, overlap, "overlap")
    return checked(replace(timing, **changes))


def changed_call(
    call: ScheduledCall, *, queue: str | None = None, priority: int | None = None, payload: bytes | None = None
) -> ScheduledCall:
    """The call with that replaced which is given, checked; signed or encrypted, it stays in its queue as it is."""
    if is_bound(call) and (payload is not None or queue not in {None, call.queue}):
        raise BadSchedule(
            "its arguments are signed or encrypted for its queue: change them by the app that has the keys "
            "(--app MODULE:APP, or app.schedules.put)"
        )
    return replace(
        call,
        queue=call.queue if queue is None else check_queue(queue),
        priority=call.priority if priority is None else check_priority(priority),
        payload=call.payload if payload is None else payload,
    )


def checked(timing: Timing) -> Timing:
    """The timing itself, or a `BadSchedule` that says in one line what is wrong with it."""
    for text in (timing.cron, timing.timezone):
        if text is not None and not isinstance(text, str):
            raise BadSchedule(f'{text!r:.80} is not text; write cron="0 3 * * *" and timezone="Europe/Berlin"')
    occurrences_of(timing)
    return timing


def _milliseconds(value: Duration, option: str) -> int:
    try:
        return duration_ms(value, option)
    except BadDuration as error:
        raise BadSchedule(str(error)) from None


def _choice(kind: type[_Choice], value: str, option: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise BadSchedule(f"{option}: {value!r:.80} is refused: use {' or '.join(kind)}") from None


# -- scheduling ----------------------------------------------------------------------------------------------


#: An occurrence that is later than this is missed, and its schedule says what becomes of it; before, it is only late.
LATE_MS = 15_000


class Decision(NamedTuple):
    """The occurrences to enqueue now, in order, and the schedule as it goes on after them."""

    occurrences: list[int]
    schedule: Schedule


def watched_task(schedule: Schedule) -> str | None:
    """The task whose end matters for the next occurrence; None where they may overlap, or before the first one."""
    return None if schedule.timing.overlap is Overlap.ALLOW else schedule.last_task_id


def decide(schedule: Schedule, now_ms: int, *, active: bool, limit: int) -> Decision | None:
    """What to do about a schedule now, with at most `limit` occurrences; None for nothing.

    `active` says whether the watched task has yet to end.
    """
    occurrence_ms = schedule.next_at_ms
    if occurrence_ms is None or occurrence_ms > now_ms:
        return None
    overlap = schedule.timing.overlap
    occurrences = occurrences_of(schedule.timing)
    if active and overlap is Overlap.QUEUE:
        return None if schedule.waiting else Decision([], _after(schedule, waiting=True))
    if active and overlap is Overlap.SKIP:
        return Decision(
            [], _after(schedule, next_at_ms=occurrences.after(now_ms), **_skipped(occurrence_ms, "overlap"))
        )
    due = _due(schedule, occurrences, occurrence_ms, now_ms, limit)
    made, left = _now_and_later(overlap, due, limit)
    changes = {
        "next_at_ms": left[0] if left else occurrences.after(now_ms),
        "waiting": overlap is Overlap.QUEUE and bool(left),
        "last_at_ms": made[-1] if made else schedule.last_at_ms,
        **_dropped(occurrences, occurrence_ms, due, now_ms),
        **(_skipped(due[0], "overlap") if overlap is Overlap.SKIP and len(due) > 1 else {}),
    }
    return Decision(made, _after(schedule, **changes))


def _now_and_later(overlap: Overlap, due: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Which of the due occurrences are enqueued now, and which are left for the next time."""
    match overlap:
        case Overlap.ALLOW:
            return due[:limit], due[limit:]
        case Overlap.QUEUE:
            return due[:1], due[1:]
        case Overlap.SKIP:
            return due[-1:], []


def _due(schedule: Schedule, occurrences: Occurrences, occurrence_ms: int, now_ms: int, limit: int) -> list[int]:
    """The due occurrences to enqueue: all that are merely late, and of the missed ones those that the timing asks for.

    The stored next occurrence counts even if the cron line or the time zone would put it at another time by now.
    """
    timing = schedule.timing
    oldest_ms = _oldest_ms(timing, now_ms)
    first = [occurrence_ms] if schedule.waiting or occurrence_ms >= oldest_ms else []
    later = list(
        islice(takewhile(lambda each: each <= now_ms, occurrences.follow(max(occurrence_ms, oldest_ms - 1))), limit + 1)
    )
    if len(later) > limit and timing.overlap is Overlap.SKIP:
        later.append(occurrences.latest(later[-1], now_ms))  # the one of them that will be made
    if later or timing.missed is not Missed.ONCE:
        return [*first, *later]
    latest_ms = occurrences.latest(occurrence_ms, now_ms)
    return [*first, latest_ms] if latest_ms not in first else first


def _oldest_ms(timing: Timing, now_ms: int) -> int:
    """The time of the oldest occurrence that is enqueued on its own, and not in place of all that were missed."""
    return now_ms - (max(timing.window_ms, LATE_MS) if timing.missed is Missed.ALL else LATE_MS)


def _dropped(occurrences: Occurrences, occurrence_ms: int, due: list[int], now_ms: int) -> dict[str, Any]:
    for each in (occurrence_ms, occurrences.after(occurrence_ms)):
        if each is not None and each <= now_ms and each not in due:
            return _skipped(each, "missed")
    return {}


def _skipped(occurrence_ms: int, because: str) -> dict[str, Any]:
    return {"skipped_at_ms": occurrence_ms, "skipped_because": because}


def _after(schedule: Schedule, **changes: Any) -> Schedule:
    return replace(schedule, version=schedule.version + 1, **changes)


# -- rescheduling --------------------------------------------------------------------------------------------


def begun(schedule: Schedule, now_ms: int) -> Schedule:
    """A new schedule, whose first occurrence is the first one after now."""
    check_signed_timing(schedule)
    return replace(schedule, next_at_ms=_next_ms(schedule.timing, now_ms), version=1)


def paused(schedule: Schedule) -> Schedule:
    """The schedule without occurrences until it is resumed; those that fall into the pause are dropped."""
    return schedule if schedule.paused else _changed(schedule, paused=True, next_at_ms=None, waiting=False)


def resumed(schedule: Schedule, now_ms: int) -> Schedule:
    """The schedule with occurrences again, from now on."""
    if not schedule.paused:
        return schedule
    return _changed(schedule, paused=False, next_at_ms=_next_ms(schedule.timing, now_ms))


def edited(
    schedule: Schedule, timing: Timing, call: ScheduledCall, now_ms: int, declared: str | None = None
) -> Schedule:
    """The schedule with another definition; still paused if it was, and with a new next occurrence if its times change.

    `declared` is the digest of the definition, if this one comes from an app's code.
    """
    declared = schedule.declared if declared is None else declared
    if (timing, call, declared) == (schedule.timing, schedule.call, schedule.declared):
        return schedule
    check_signed_timing(replace(schedule, timing=timing, call=call))
    changes: dict[str, Any] = {"timing": timing, "call": call, "declared": declared}
    if timing.rhythm != schedule.timing.rhythm and not schedule.paused:
        changes.update(next_at_ms=_next_ms(timing, now_ms), waiting=False)
    return _changed(schedule, **changes)


def ran(schedule: Schedule, task_id: str) -> Schedule:
    """The schedule with a task that was made on demand, which counts as its last one."""
    return _changed(schedule, last_task_id=task_id)


def digest(timing: Timing, call: ScheduledCall) -> str:
    """A short text that tells definitions apart."""
    return sha256(msgspec.json.encode((timing, call))).hexdigest()[:16]


def _next_ms(timing: Timing, now_ms: int) -> int | None:
    return occurrences_of(timing).after(now_ms)


def _changed(schedule: Schedule, **changes: Any) -> Schedule:
    return replace(schedule, version=schedule.version + 1, **changes)
