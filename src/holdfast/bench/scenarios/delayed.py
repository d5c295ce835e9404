"""Whether tasks that wait for their time slow down those whose time has come."""

from __future__ import annotations

import asyncio
import statistics
import time

from holdfast.bench.figures import Figure
from holdfast.bench.filling import NOOP, fill, new_ids
from holdfast.bench.scenarios.bare_loop import reserve_and_ack
from holdfast.bench.setting import Setting
from holdfast.stores.contract import MAINTENANCE, Store

_SMALL = 10_000
#: This many tasks become due at once; few enough to be enqueued before they are due.
_DUE = 5_000
_DUE_IN_MS = 2_000
#: Longer than any bench.
_LATER_MS = 6 * 3_600_000
_OWNER = "bench"
_RUNS = 3
_BATCH = 100


async def measure(setting: Setting) -> list[Figure]:
    """The rates of promote and of reserve + ack with many delayed tasks, against those with few."""
    scenario = "delayed"
    ids = new_ids()
    async with setting.store(scenario) as store:
        epoch = (await store.lead(MAINTENANCE, _OWNER, _LATER_MS)).epoch
        later = setting.queue(f"{scenario}-later")
        await fill(store, later, _SMALL, ids, delay_ms=_LATER_MS)
        few = await _rates(setting, store, epoch)
        await fill(store, later, setting.sizes.backlog - _SMALL, ids, delay_ms=_LATER_MS)
        many = await _rates(setting, store, epoch)
        await store.lead(MAINTENANCE, _OWNER, 0)
    title = f"{setting.sizes.backlog:,} delayed"
    return [
        Figure("promote_small", f"promote with {_SMALL:,} delayed", few[0], "tasks/s"),
        Figure("promote_large", f"promote with {title}", many[0], "tasks/s"),
        Figure("promote_large_share", f"promote, {title} against {_SMALL:,}", 100 * many[0] / few[0], "%"),
        Figure("reserve_delayed_share", f"bare loop, {title} against {_SMALL:,}", 100 * many[1] / few[1], "%"),
    ]


async def _rates(setting: Setting, store: Store, epoch: int) -> tuple[float, float]:
    """Tasks promoted per second, and tasks reserved and acked per second, the middle of some runs."""
    rates = [await _promote_and_drain(setting, store, epoch) for _ in range(_RUNS)]
    return statistics.median(promoted for promoted, _ in rates), statistics.median(drained for _, drained in rates)


async def _promote_and_drain(setting: Setting, store: Store, epoch: int) -> tuple[float, float]:
    queue = setting.queue("delayed-due")
    await fill(store, queue, _DUE, new_ids(), delay_ms=_DUE_IN_MS)
    await asyncio.sleep(_DUE_IN_MS / 1000)
    begin, promoted = time.perf_counter(), 0
    while promoted < _DUE:
        promoted += (await store.promote(epoch)).count
    rate = _DUE / (time.perf_counter() - begin)
    return rate, await reserve_and_ack(store, queue, _BATCH, NOOP)
