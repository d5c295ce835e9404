"""Priority is one number in one index: the smaller the rank, the sooner the task."""

from __future__ import annotations

from holdfast.errors import BadOption

LOWEST, HIGHEST = -100, 100
#: Each level of priority is worth this much waiting, so that nothing starves.
AGED_STEP_MS = 60_000
#: "Infinite" for strict order: longer than any time of waiting, and rank still fits a 53-bit float.
STRICT_STEP_MS = 1 << 42


def rank(ready_at_ms: int, priority: int, step_ms: int = AGED_STEP_MS) -> int:
    """The place of a task in its queue: when it became ready, less what its priority is worth."""
    return ready_at_ms - priority * step_ms


def check_priority(priority: int) -> int:
    """The priority, or a `BadOption` that names the range."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not LOWEST <= priority <= HIGHEST:
        raise BadOption(f"priority {priority!r} is refused: use a whole number from {LOWEST} to {HIGHEST}")
    return priority
