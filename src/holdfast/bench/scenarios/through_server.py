"""What workers and producers do in other scenarios, through a server."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.bench.figures import Figure
from holdfast.bench.scenarios import drain, enqueue, latency
from holdfast.bench.setting import Setting


async def measure_drain(setting: Setting, direct_rate: float) -> list[Figure]:
    """The drain rate, and its share of the rate of the same worker without a server."""
    drained = await drain.drain(setting, "drain", setting.sizes.tasks)
    share = 100 * drained.rate / direct_rate
    title = f"drain of {setting.sizes.tasks:,} tasks, one child"
    return [
        Figure("direct_drain", f"direct: {title}", direct_rate, "tasks/s"),
        *_behind([Figure("drain", title, drained.rate, "tasks/s")]),
        Figure("server_drain_share", "share of the direct drain", share, "%"),
    ]


async def measure_enqueue(setting: Setting) -> list[Figure]:
    """One by one, concurrently and in bulk."""
    return _behind(await enqueue.measure(setting))


async def measure_latency(setting: Setting) -> list[Figure]:
    """An idle worker's pickup, and tasks due at once."""
    return _behind(await latency.measure(setting))


def _behind(figures: Iterable[Figure]) -> list[Figure]:
    return [
        msgspec.structs.replace(figure, name=f"server_{figure.name}", title=f"server: {figure.title}")
        for figure in figures
    ]
