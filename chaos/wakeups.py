"""What wake-ups cost on PostgreSQL: statements of idle workers, and the throughput of producers with and without them.

`python -m chaos.wakeups --workers 500`. A worker here does what an idle worker does to its store: it waits for a
wake-up, polls now and then, announces itself every ten seconds, and takes part in the maintenance.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import DURABLE

from holdfast.bench.filling import NOOP, fill, new_ids
from holdfast.core.fairness import QueueShare
from holdfast.maintenance.service import Maintenance
from holdfast.stores.contract import Reserve, Retention, Store, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.worker.child.loop import LONGEST_POLL_MS, SAFETY_POLL_MS

QUEUE: Final = "wakeups"
PROCESSES: Final = 5
PRODUCERS: Final = 16
_LEASE_MS: Final = 30_000
_CALLS: Final = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements"


class Durations(NamedTuple):
    """How long each part of a measurement takes."""

    #: Until all workers have connected and poll as rarely as they ever do.
    settle_seconds: float = 60.0
    measure_seconds: float = 30.0
    round_seconds: float = 4.0
    rounds: int = 5


class Figures(NamedTuple):
    """What was measured."""

    statements_per_second: float
    with_wakeups_per_second: float
    without_wakeups_per_second: float


def main() -> None:
    """Measures both, and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=500)
    workers = parser.parse_args().workers
    with server_for(workers) as server:
        figures = measure(server, workers, Durations())
    statements, with_wakeups, without = figures
    print(f"{workers} idle workers: {statements:.0f} statements/s on the database")
    print(
        f"{PRODUCERS} producers, one task a call: {with_wakeups:,.0f} tasks/s with wake-ups, "
        f"{without:,.0f} without: they cost {1 - with_wakeups / without:.1%}"
    )


def server_for(workers: int) -> PostgresServer:
    """A PostgreSQL that counts its statements and has connections enough for these workers."""
    settings: dict[str, Any] = {
        "max_connections": 4 * workers + 100,
        "shared_preload_libraries": "pg_stat_statements",
        "shared_buffers": "512MB",
    }
    return PostgresServer(profile=DURABLE, **settings)


def measure(server: PostgresServer, workers: int, durations: Durations) -> Figures:
    """The load of this many idle workers, then the throughput of producers."""
    url = server.url()
    asyncio.run(_prepare(url))
    server.query("CREATE EXTENSION pg_stat_statements")
    with _idle_workers(url, workers):
        time.sleep(durations.settle_seconds)
        before = _calls(server)
        time.sleep(durations.measure_seconds)
        rate = (_calls(server) - before) / durations.measure_seconds
    return Figures(rate, *asyncio.run(_producers(url, durations)))


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
        context.Process(target=_idle, args=(url, count // min(PROCESSES, count), number), daemon=True)
        for number in range(min(PROCESSES, count))
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
                await asyncio.sleep(0.02)  # so that they do not poll at the same time

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
        woken = await store.wait([QUEUE], round(poll_ms * random.uniform(0.9, 1.1)))  # noqa: S311
        poll_ms = SAFETY_POLL_MS if woken else min(2 * poll_ms, LONGEST_POLL_MS)
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


async def _producers(url: str, durations: Durations) -> tuple[float, float]:
    """Tasks per second of producers that notify and of producers that do not, in turns: the median of the rounds."""
    store, listener = open_store(url), open_store(url)
    if not isinstance(store, PostgresStore):
        raise TypeError(f"{url} is not the URL of one PostgreSQL schema")
    listening = asyncio.create_task(_listen(listener))
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * durations.rounds):
        notifies = number % 2 == 0
        silence = patch.object(store._database, "notify", lambda _names: None)  # noqa: SLF001
        with nullcontext() if notifies else silence:
            rates[notifies].append(await _full_speed(store, durations.round_seconds))
    listening.cancel()
    await store.close()
    await listener.close()
    return statistics.median(rates[True]), statistics.median(rates[False])


async def _listen(store: Store) -> None:
    while True:
        await store.wait([QUEUE], 1_000)


async def _full_speed(store: Store, seconds: float) -> float:
    ids, begin, done = new_ids(), time.perf_counter(), 0

    async def producer() -> None:
        nonlocal done
        while time.perf_counter() - begin < seconds:
            await fill(store, QUEUE, 1, ids)
            done += 1

    await asyncio.gather(*(producer() for _ in range(PRODUCERS)))
    return done / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
