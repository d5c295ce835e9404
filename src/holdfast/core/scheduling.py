"""Which ticks of a schedule are made now, and how it goes on after them. Pure decisions; a store executes them."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.schedule import Missed, Overlap, Schedule, Timing
from holdfast.core.ticks import Ticks, ticks_of

#: A tick that is later than this is missed, and its schedule says what becomes of it; until then it is only late.
LATE_MS = 15_000


class Decision(NamedTuple):
    """The ticks to make now, in order, and the schedule as it goes on after them."""

    ticks: list[int]
    schedule: Schedule


def watched_task(schedule: Schedule) -> str | None:
    """The task whose end matters for the next tick; None where ticks may overlap, or before the first one."""
    return None if schedule.timing.overlap is Overlap.ALLOW else schedule.last_task_id


def decide(schedule: Schedule, now_ms: int, *, active: bool, limit: int) -> Decision | None:
    """What to do about a schedule now, making at most `limit` ticks; None for nothing.

    `active` says whether the watched task has yet to end.
    """
    tick_ms = schedule.next_at_ms
    if tick_ms is None or tick_ms > now_ms:
        return None
    overlap = schedule.timing.overlap
    ticks = ticks_of(schedule.timing)
    if active and overlap is Overlap.QUEUE:
        return None if schedule.waiting else Decision([], _after(schedule, waiting=True))
    if active and overlap is Overlap.SKIP:
        return Decision([], _after(schedule, next_at_ms=ticks.after(now_ms), **_skipped(tick_ms, "overlap")))
    due = _due(schedule, ticks, tick_ms, now_ms, limit)
    made, left = _now_and_later(overlap, due, limit)
    changes = {
        "next_at_ms": left[0] if left else ticks.after(now_ms),
        "waiting": overlap is Overlap.QUEUE and bool(left),
        "last_at_ms": made[-1] if made else schedule.last_at_ms,
        **_dropped(ticks, tick_ms, due, now_ms),
        **(_skipped(due[0], "overlap") if overlap is Overlap.SKIP and len(due) > 1 else {}),
    }
    return Decision(made, _after(schedule, **changes))


def _now_and_later(overlap: Overlap, due: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Which of the due ticks are made now, and which are left for the next time."""
    match overlap:
        case Overlap.ALLOW:
            return due[:limit], due[limit:]
        case Overlap.QUEUE:
            return due[:1], due[1:]
        case Overlap.SKIP:
            return due[-1:], []


def _due(schedule: Schedule, ticks: Ticks, tick_ms: int, now_ms: int, limit: int) -> list[int]:
    """The ticks until now that are to be made: all that are merely late, and of the missed ones what the timing says.

    The next tick counts as one even if the line or the zone would have it at another time by now.
    """
    timing = schedule.timing
    oldest_ms = _oldest_ms(timing, now_ms)
    first = [tick_ms] if schedule.waiting or tick_ms >= oldest_ms else []
    later = list(islice(takewhile(lambda each: each <= now_ms, ticks.follow(max(tick_ms, oldest_ms - 1))), limit + 1))
    if len(later) > limit and timing.overlap is Overlap.SKIP:
        later.append(ticks.latest(later[-1], now_ms))  # the one of them that will be made
    if later or timing.missed is not Missed.ONCE:
        return [*first, *later]
    latest_ms = ticks.latest(tick_ms, now_ms)
    return [*first, latest_ms] if latest_ms not in first else first


def _oldest_ms(timing: Timing, now_ms: int) -> int:
    """The oldest tick that would be made for its own sake."""
    return now_ms - (max(timing.window_ms, LATE_MS) if timing.missed is Missed.ALL else LATE_MS)


def _dropped(ticks: Ticks, tick_ms: int, due: list[int], now_ms: int) -> dict[str, Any]:
    for each in (tick_ms, ticks.after(tick_ms)):
        if each is not None and each <= now_ms and each not in due:
            return _skipped(each, "missed")
    return {}


def _skipped(tick_ms: int, because: str) -> dict[str, Any]:
    return {"skipped_at_ms": tick_ms, "skipped_because": because}


def _after(schedule: Schedule, **changes: Any) -> Schedule:
    return replace(schedule, version=schedule.version + 1, **changes)
