"""Whether tasks of a type that no worker knows slow down those behind them: a worker asks only for what it knows."""

from __future__ import annotations

import statistics

from holdfast.bench.figures import Figure
from holdfast.bench.filling import NOOP, fill, new_ids
from holdfast.bench.scenarios.bare_loop import reserve_and_ack
from holdfast.bench.setting import Setting
from holdfast.stores.contract import Store

_WAITING = 10_000
_KNOWN = 10_000
_BATCH = 100
_RUNS = 3
_UNKNOWN = "bench.unknown"


async def measure(setting: Setting) -> list[Figure]:
    """The rate of reserve + ack behind many tasks that are not asked for, against that without them."""
    scenario = "unknown_types"
    async with setting.store(scenario) as store:
        alone = await _rate(store, setting.queue(f"{scenario}-none"))
        behind = setting.queue(scenario)
        await fill(store, behind, _WAITING, new_ids(), task_type=_UNKNOWN)
        beside = await _rate(store, behind)
    title = f"behind {_WAITING:,} of a type that no worker knows"
    return [
        Figure("unknown_types", f"reserve + ack {title}", beside, "tasks/s"),
        Figure("unknown_types_share", "against none of them", 100 * beside / alone, "%"),
    ]


async def _rate(store: Store, queue: str) -> float:
    rates = []
    for _ in range(_RUNS):
        await fill(store, queue, _KNOWN, new_ids())
        rates.append(await reserve_and_ack(store, queue, _BATCH, NOOP))
    return statistics.median(rates)
