"""Whether a large backlog slows the worker down or makes it grow."""

from __future__ import annotations

import statistics

from holdfast.bench.figures import Figure
from holdfast.bench.scenarios.drain import drain
from holdfast.bench.setting import Setting

_SMALL = 10_000
#: So few tasks are gone in a moment: the middle one of several runs is worth more than one.
_SMALL_RUNS = 3


async def measure(setting: Setting) -> list[Figure]:
    """The drain rate with a large backlog against that with a small one, and the worker's memory."""
    small = statistics.median([(await drain(setting, f"small-{run}", _SMALL)).rate for run in range(_SMALL_RUNS)])
    large = await drain(setting, "large", setting.sizes.backlog)
    title = f"{setting.sizes.backlog:,} waiting"
    growth_mb = large.memory_after_mb - large.memory_before_mb
    return [
        Figure("drain_small", f"drain with {_SMALL:,} waiting", small, "tasks/s"),
        Figure("drain_large", f"drain with {title}", large.rate, "tasks/s"),
        Figure("drain_large_share", f"{title} against {_SMALL:,}", 100 * large.rate / small, "%"),
        Figure("drain_large_growth", f"memory growth of the worker, {title}", growth_mb, "MB"),
    ]
