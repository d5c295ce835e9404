"""The order of the scenarios."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.bench.figures import Figure, Report
from holdfast.bench.machine import machine, versions
from holdfast.bench.measured_server import measured_server
from holdfast.bench.scenarios import (
    backlog,
    bare_loop,
    crowd,
    delayed,
    drain,
    enqueue,
    held_snapshot,
    latency,
    priorities,
    through_server,
    unknown_types,
)
from holdfast.bench.setting import Setting
from holdfast.bench.targets import with_targets

Tell = Callable[[str], None]


async def run(setting: Setting, *, full: bool, tell: Tell) -> Report:
    """Measures everything, one scenario after the other, and tells which one it is at."""
    tell("bare loop of reserve and ack on the store")
    figures = await bare_loop.measure(setting)
    tell(f"one worker drains {setting.sizes.tasks:,} tasks")
    figures += await drain.measure(setting, max(figure.value for figure in figures))
    if setting.beside:
        tell("the same on one server")
        figures += await drain.measure_beside(setting, figures)
    tell("producers enqueue")
    figures += await enqueue.measure(setting)
    tell("an idle worker: processor share, pickup, tasks due at once")
    figures += await latency.measure(setting)
    if full:
        tell(f"one worker drains {setting.sizes.backlog:,} tasks")
        figures += await backlog.measure(setting)
        tell(f"promote and reserve beside {setting.sizes.backlog:,} delayed tasks")
        figures += await delayed.measure(setting)
    if full and setting.scheme == "postgresql":
        tell("tasks pass while a snapshot is held open for a minute")
        figures += await held_snapshot.measure(setting)
    # Last, since they leave many tasks behind.
    tell(f"high-priority tasks beside {setting.sizes.low:,} low ones")
    figures += await priorities.measure(setting)
    tell("tasks behind those of a type that no worker knows")
    figures += await unknown_types.measure(setting)
    return _report(setting, figures, full=full)


async def run_server(setting: Setting, *, tell: Tell) -> Report:
    """Measures a server and, for comparison, a worker that uses the store directly."""
    crowd.check(setting.sizes.pollers)
    tell(f"one worker drains {setting.sizes.tasks:,} tasks, directly from the store")
    direct = await drain.drain(setting, "direct", setting.sizes.tasks)
    async with measured_server(setting) as server:
        tell("the same through a server")
        figures = await through_server.measure_drain(server.setting, direct.rate)
        tell("producers enqueue through it")
        figures += await through_server.measure_enqueue(server.setting)
        tell("an idle worker behind it: pickup, tasks due at once")
        figures += await through_server.measure_latency(server.setting)
        tell(f"{setting.sizes.pollers:,} clients wait at it")
        figures += await crowd.measure(server)
    return _report(setting, figures, full=False)


def _report(setting: Setting, figures: list[Figure], *, full: bool) -> Report:
    from holdfast.stores.open import redacted

    return Report(
        machine=machine(setting.directory),
        versions=versions(),
        settings={
            "store": setting.described or redacted(setting.url or "a fresh SQLite file for each scenario"),
            "tasks": setting.sizes.tasks,
            "concurrency": setting.sizes.concurrency,
            "full": full,
        },
        figures=with_targets(figures, setting.scheme),
    )
