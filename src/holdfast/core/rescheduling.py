"""How a schedule is made and changed by people. Pure: each function gives the schedule that follows."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.schedule import Call, Schedule, Timing
from holdfast.core.ticks import ticks_of


def begun(schedule: Schedule, now_ms: int) -> Schedule:
    """A new schedule, whose first tick is the first one after now."""
    return replace(schedule, next_at_ms=_next_ms(schedule.timing, now_ms), version=1)


def paused(schedule: Schedule) -> Schedule:
    """Without ticks until it is resumed; those that fall into the pause are nobody's."""
    return schedule if schedule.paused else _changed(schedule, paused=True, next_at_ms=None, waiting=False)


def resumed(schedule: Schedule, now_ms: int) -> Schedule:
    """With ticks again, from now on."""
    if not schedule.paused:
        return schedule
    return _changed(schedule, paused=False, next_at_ms=_next_ms(schedule.timing, now_ms))


def edited(schedule: Schedule, timing: Timing, call: Call, now_ms: int, declared: str | None = None) -> Schedule:
    """With another definition; paused or not as before, and with the same next tick unless it ticks by another rhythm.

    `declared` is the digest of the definition, if this one comes from an app's code.
    """
    declared = schedule.declared if declared is None else declared
    if (timing, call, declared) == (schedule.timing, schedule.call, schedule.declared):
        return schedule
    changes: dict[str, Any] = {"timing": timing, "call": call, "declared": declared}
    if timing.rhythm != schedule.timing.rhythm and not schedule.paused:
        changes.update(next_at_ms=_next_ms(timing, now_ms), waiting=False)
    return _changed(schedule, **changes)


def ran(schedule: Schedule, task_id: str) -> Schedule:
    """With a task that somebody made besides its ticks, and that counts as its last one."""
    return _changed(schedule, last_task_id=task_id)


def digest(timing: Timing, call: Call) -> str:
    """A short text that tells definitions apart."""
    return sha256(msgspec.json.encode((timing, call))).hexdigest()[:16]


def _next_ms(timing: Timing, now_ms: int) -> int | None:
    return ticks_of(timing).after(now_ms)


def _changed(schedule: Schedule, **changes: Any) -> Schedule:
    return replace(schedule, version=schedule.version + 1, **changes)
