"""Schedules as people write them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from holdfast.core.durations import Duration, duration_ms
from holdfast.core.names import check_queue
from holdfast.core.priority import check_priority
from holdfast.core.schedule import Call, Missed, Overlap, Timing
from holdfast.core.sealing import is_bound
from holdfast.core.ticks import ticks_of
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
    call: Call, *, queue: str | None = None, priority: int | None = None, payload: bytes | None = None
) -> Call:
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
    ticks_of(timing)
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
