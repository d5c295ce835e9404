"""The order of the scenarios."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.bench.figures import Figure, Report
from holdfast.bench.machine import machine, versions
from holdfast.bench.scenarios import (
    backlog,
    bare_loop,
    delayed,
    drain,
    enqueue,
    held_snapshot,
    latency,
    priorities,
    strangers,
)
from holdfast.bench.setting import Setting
from holdfast.bench.targets import with_targets


async def run(setting: Setting, *, full: bool, tell: Callable[[str], None]) -> Report:
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
    tell("tasks behind those of a type that nobody knows")
    figures += await strangers.measure(setting)
    return _report(setting, figures, full=full)


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
