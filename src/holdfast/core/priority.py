"""Priority is one number in one index: the smaller the rank, the sooner the task."""

from __future__ import annotations

from typing import Literal, get_args

from holdfast.core.durations import Duration, duration_ms, format_ms
from holdfast.errors import BadOption

#: How a queue weighs priority against waiting: strict, priority alone; aged, each level is worth a step of waiting.
Order = Literal["strict", "aged"]
ORDERS: tuple[Order, ...] = get_args(Order)

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


def step_of(order: Order, step: Duration | None = None) -> int:
    """The step in milliseconds that makes this order; a `BadOption` in one line if there is none."""
    if order == "strict":
        if step is not None:
            raise BadOption("order: strict has no step; leave it out, or say aged")
        return STRICT_STEP_MS
    if order != "aged":
        raise BadOption(f'order {order!r} is refused: say "strict" or "aged"')
    step_ms = AGED_STEP_MS if step is None else duration_ms(step, "step")
    if step_ms < 1:
        raise BadOption(f"step: {step!r} is refused; with less than 1ms a level, priorities would mean nothing")
    return step_ms


def order_of(step_ms: int) -> Order:
    """The order that this step makes."""
    return "strict" if step_ms >= STRICT_STEP_MS else "aged"


def order_text(step_ms: int) -> str:
    """The order for people: `strict`, `aged`, or `aged, 5m a level` where that is not the default step."""
    order = order_of(step_ms)
    usual = order == "strict" or step_ms == AGED_STEP_MS
    return order if usual else f"{order}, {format_ms(step_ms)} a level"
