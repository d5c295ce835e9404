"""Whether a snapshot that another session holds open slows a PostgreSQL queue: nothing can be cleaned up meanwhile.

The queue runs empty between batches, and the tables are analyzed all the time: then they look empty to the planner.
`HOLDFAST_BENCH_HELD_S=600` holds it for ten minutes; the first and the last tenth of the time are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from holdfast.bench.figures import Figure
from holdfast.bench.filling import NOOP, fill, new_ids
from holdfast.bench.scenarios.bare_loop import reserve_and_ack
from holdfast.bench.setting import Setting
from holdfast.stores.contract import MAINTENANCE, MAX_BATCH, Store

_HELD_S = float(os.environ.get("HOLDFAST_BENCH_HELD_S", "60"))
_PART_S = _HELD_S / 10
_ANALYZE_EVERY_S = 2.0
_BATCH = 100
_OWNER = "bench"
#: Autovacuum looks once a minute unless the server is told otherwise.
_CLEANED_WITHIN_S = 180.0
_DEAD = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'holdfast'"


async def measure(setting: Setting) -> list[Figure]:
    """Tasks recorded, reserved and acked per second at the beginning and at the end of a held snapshot."""
    url = setting.store_url("held")
    async with setting.store("held") as store, _connected(url) as watcher:
        epoch = (await store.lead(MAINTENANCE, _OWNER, 3_600_000)).epoch
        async with _connected(url) as holder, holder.transaction():
            await holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await holder.execute("SELECT count(*) FROM holdfast.ready")
            analyzing = asyncio.create_task(_analyze(watcher))
            try:
                marks = await _pass_tasks(setting, store, epoch)
            finally:
                analyzing.cancel()
                await asyncio.wait([analyzing])
        dead = await _number(watcher, _DEAD)
        left = await _after_cleaning(watcher, dead)
    first, last = _rate(marks, 0, _PART_S), _rate(marks, _HELD_S - _PART_S, _HELD_S)
    return [
        Figure("held_tasks", f"tasks that passed a snapshot held for {_HELD_S:.0f} s", marks[-1][1], "tasks"),
        Figure("held_first", f"the first {_PART_S:.0f} s of it", first, "tasks/s"),
        Figure("held_last", f"the last {_PART_S:.0f} s of it", last, "tasks/s"),
        Figure("held_share", "last against first", 100 * last / first, "%"),
        Figure("held_dead", "dead rows when it ended", dead, "rows"),
        Figure("held_dead_left", "dead rows left after autovacuum", left, "rows"),
    ]


async def _pass_tasks(setting: Setting, store: Store, epoch: int) -> list[tuple[float, int]]:
    """Records tasks and takes them, again and again; when how many had passed."""
    queue, ids = setting.queue("held"), new_ids()
    begin, passed = time.perf_counter(), 0
    marks = [(0.0, 0)]
    while marks[-1][0] < _HELD_S:
        await fill(store, queue, MAX_BATCH, ids)
        await reserve_and_ack(store, queue, _BATCH, NOOP)
        # As the leader does.
        await store.promote(epoch)
        await store.expired()
        passed += MAX_BATCH
        marks.append((time.perf_counter() - begin, passed))
    return marks


async def _analyze(watcher: Any) -> None:
    while True:
        await watcher.execute("ANALYZE")
        await asyncio.sleep(_ANALYZE_EVERY_S)


def _rate(marks: list[tuple[float, int]], after_s: float, before_s: float) -> float:
    part = [mark for mark in marks if after_s <= mark[0] <= before_s]
    return (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0])


async def _after_cleaning(watcher: Any, dead: int) -> int:
    """How many dead rows are left when autovacuum has been there, or when it is given up on."""
    deadline = time.monotonic() + _CLEANED_WITHIN_S
    while True:
        left = await _number(watcher, _DEAD)
        if left <= dead // 10 or time.monotonic() > deadline:
            return left
        await asyncio.sleep(1)


async def _number(connection: Any, query: str) -> int:
    row = await (await connection.execute(query)).fetchone()
    return int(row[0])


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    from psycopg import AsyncConnection

    connection = await AsyncConnection.connect(url, autocommit=True)
    try:
        yield connection
    finally:
        await connection.close()
