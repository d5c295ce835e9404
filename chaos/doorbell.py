"""What waiting and ringing cost on PostgreSQL: idle workers, and producers at full speed.

`python -m chaos.doorbell --workers 500`. A worker here is what an idle worker does to its store: it waits for a bell,
looks by itself now and then, says every ten seconds that it lives, and stands by for the maintenance.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import DURABLE

from holdfast.bench.filling import NOOP, fill, new_ids
from holdfast.core.fairness import QueueShare
from holdfast.maintenance.service import Maintenance
from holdfast.stores.contract import Reserve, Retention, Store, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.worker.child.loop import LONGEST_POLL_MS, SAFETY_POLL_MS

QUEUE: Final = "doorbell"
PROCESSES: Final = 5
PRODUCERS: Final = 16
_LEASE_MS: Final = 30_000
#: Until polls have become as rare as they get, and everybody has connected.
_SETTLE_SECONDS: Final = 60.0
_MEASURE_SECONDS: Final = 30.0
_ROUND_SECONDS: Final = 4.0
_ROUNDS: Final = 5
_CALLS: Final = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements"


def main() -> None:
    """Measures both, and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=500)
    workers = parser.parse_args().workers
    settings: dict[str, Any] = {
        "max_connections": 4 * workers + 100,
        "shared_preload_libraries": "pg_stat_statements",
        "shared_buffers": "512MB",
    }
    with PostgresServer(profile=DURABLE, **settings) as server:
        url = server.url()
        asyncio.run(_prepare(url))
        server.query("CREATE EXTENSION pg_stat_statements")
        with _idle_workers(url, workers):
            time.sleep(_SETTLE_SECONDS)
            before = _calls(server)
            time.sleep(_MEASURE_SECONDS)
            rate = (_calls(server) - before) / _MEASURE_SECONDS
        print(f"{workers} idle workers: {rate:.0f} statements/s on the server", flush=True)
        with_bell, without = asyncio.run(_producers(url))
        print(
            f"{PRODUCERS} producers, one task a call: {with_bell:,.0f} tasks/s with the doorbell, "
            f"{without:,.0f} without: it costs {1 - with_bell / without:.1%}"
        )


async def _prepare(url: str) -> None:
    store = open_store(url)
    await store.migrate()
    await store.close()


def _calls(server: PostgresServer) -> int:
    [(calls,)] = server.query(_CALLS)
    return int(calls)


# -- idle workers ----------------------------------------------------------------------------------------------


@contextmanager
def _idle_workers(url: str, count: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [
        context.Process(target=_idle, args=(url, count // PROCESSES, number), daemon=True)
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _idle(url: str, count: int, number: int) -> None:
    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for each in range(count):
                group.create_task(_worker(url, f"host:{number}-{each}"))
                await asyncio.sleep(0.02)  # they do not begin in step

    asyncio.run(all_of_them())


async def _worker(url: str, worker_id: str) -> None:
    store = open_store(url)
    async with asyncio.TaskGroup() as group:
        group.create_task(_fetch(store, worker_id))
        group.create_task(_announce(store, worker_id))
        group.create_task(Maintenance(store, worker_id, Retention(), random_unit=random.random).run())


async def _fetch(store: Store, worker_id: str) -> None:
    ids, poll_ms = new_ids(), SAFETY_POLL_MS
    while True:
        rung = await store.wait([QUEUE], round(poll_ms * random.uniform(0.9, 1.1)))  # noqa: S311
        poll_ms = SAFETY_POLL_MS if rung else min(2 * poll_ms, LONGEST_POLL_MS)
        request = Reserve(
            claim_id=ids.claim_id(),
            worker_id=worker_id,
            shares=[QueueShare(QUEUE, 10)],
            max_tasks=10,
            lease_ms=_LEASE_MS,
            types=frozenset({NOOP}),
            fresh=True,
        )
        await store.reserve(request)


async def _announce(store: Store, worker_id: str) -> None:
    plain = {"host": "host", "pid": 1, "version": "0", "queues": (QUEUE,), "types": (NOOP,)}
    record = WorkerRecord(worker_id=worker_id, processes=1, concurrency=10, running=0, **plain)  # type: ignore[arg-type]
    while True:
        await store.announce(record, _LEASE_MS)
        await asyncio.sleep(_LEASE_MS / 3_000)


# -- producers -------------------------------------------------------------------------------------------------


async def _producers(url: str) -> tuple[float, float]:
    """Tasks per second of producers that ring and of such that do not, in turns: the middle of some rounds."""
    store, hearer = open_store(url), open_store(url)
    listening = asyncio.create_task(_hear(hearer))
    database = store._database  # type: ignore[attr-defined]  # noqa: SLF001
    ring: Callable[..., None] = database.ring
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * _ROUNDS):
        rings = number % 2 == 0
        database.ring = ring if rings else lambda _names: None
        rates[rings].append(await _full_speed(store))
    listening.cancel()
    await store.close()
    await hearer.close()
    return statistics.median(rates[True]), statistics.median(rates[False])


async def _hear(store: Store) -> None:
    while True:
        await store.wait([QUEUE], 1_000)


async def _full_speed(store: Store) -> float:
    ids, begin, done = new_ids(), time.perf_counter(), 0

    async def producer() -> None:
        nonlocal done
        while time.perf_counter() - begin < _ROUND_SECONDS:
            await fill(store, QUEUE, 1, ids)
            done += 1

    await asyncio.gather(*(producer() for _ in range(PRODUCERS)))
    return done / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
