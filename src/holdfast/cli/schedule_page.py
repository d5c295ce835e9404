"""Schedules, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.admin.inspect import json_value
from holdfast.cli import output
from holdfast.core.cron import CronLine
from holdfast.core.durations import format_ms
from holdfast.core.schedule import Missed, Schedule, Timing
from holdfast.core.zones import zone

COLUMNS = ["name", "type", "queue", "when", "status", "next tick", "last tick", "source"]


def schedule_view(schedule: Schedule) -> dict[str, Any]:
    """The schedule as one JSON object, arguments as a value, nothing left out."""
    view = msgspec.structs.asdict(schedule)
    view["timing"] = msgspec.structs.asdict(schedule.timing)
    view["call"] = {**msgspec.structs.asdict(schedule.call), "policy": msgspec.structs.asdict(schedule.call.policy)}
    view["call"]["arguments"] = json_value(view["call"].pop("payload"))
    return view


def row(schedule: Schedule) -> list[object]:
    """One line of the list."""
    return [
        schedule.name,
        schedule.call.type,
        schedule.call.queue,
        when(schedule.timing),
        status(schedule),
        tick_time(schedule.next_at_ms, schedule.timing),
        tick_time(schedule.last_at_ms, schedule.timing),
        schedule.source,
    ]


def show_schedule(schedule: Schedule, upcoming: Sequence[datetime]) -> None:
    """Prints all that is known of a schedule, and its next ticks."""
    output.details(_facts(schedule))
    output.block("next ticks", "\n".join(wall_time(each) for each in upcoming))


def when(timing: Timing) -> str:
    """`0 3 * * * Europe/Berlin`, `every 10m`."""
    if timing.every_ms is not None:
        return f"every {format_ms(timing.every_ms)}"
    return f"{timing.cron} {timing.timezone}"


def status(schedule: Schedule) -> str:
    """Whether it ticks."""
    return "paused" if schedule.paused else "waiting for its last task" if schedule.waiting else ""


def tick_time(tick_ms: int | None, timing: Timing) -> str:
    """The tick on the clock of its zone; empty for None."""
    if tick_ms is None:
        return ""
    return wall_time(datetime.fromtimestamp(tick_ms / 1000, UTC).astimezone(zone(timing.timezone)))


def wall_time(moment: datetime) -> str:
    """The time with its offset, or `Z` where the clock is that of UTC."""
    text = moment.isoformat()
    return text.replace("+00:00", "Z") if moment.tzinfo is UTC else text


def _facts(schedule: Schedule) -> list[tuple[str, object]]:
    timing, call = schedule.timing, schedule.call
    window = f" within {format_ms(timing.window_ms)}" if timing.missed is Missed.ALL else ""
    return [
        ("name", schedule.name),
        ("type", call.type),
        ("arguments", json.dumps(json_value(call.payload), ensure_ascii=False)),
        ("queue", call.queue),
        ("priority", call.priority),
        ("when", when(timing)),
        ("in words", CronLine(timing.cron).explained() if timing.cron else ""),
        ("jitter", format_ms(timing.jitter_ms) if timing.jitter_ms else ""),
        ("missed", f"{timing.missed}{window}"),
        ("overlap", timing.overlap),
        ("status", status(schedule)),
        ("last tick", tick_time(schedule.last_at_ms, timing)),
        ("last task", schedule.last_task_id),
        ("skipped", f"{tick_time(schedule.skipped_at_ms, timing)} {schedule.skipped_because}".strip()),
        ("declared in", schedule.source),
    ]
