"""Many waiting clients: what they cost while nothing happens, how many one task wakes, how soon it is picked up.

`python -m chaos.waiting --clients 10000`. Each client has a connection of its own on which it waits as a worker
does: for the wake-up of a queue, for up to some seconds, and then it polls.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from random import uniform
from typing import Final, NamedTuple

from tests.servers.flavours import FAST
from tests.servers.redis_server import RedisServer
from tests.support import eventually

from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.task import NewTask
from holdfast.errors import StoreError
from holdfast.stores.contract import Reserve, Store
from holdfast.stores.open import open_store

QUEUE: Final = "waiting"
#: One event loop keeps at most 1,024 waiting connections to a server.
CLIENTS_A_PROCESS: Final = 1_000
_TAKE: Final = 10
_LEASE_MS: Final = 30_000
_START_SECONDS: Final = 120.0
_SPARE_CONNECTIONS: Final = 500
_MOST: Final = 0.95


class Poll(NamedTuple):
    """What a client found when it was woken: for each task, how long it had waited to be picked up."""

    woken: bool
    pickups_ms: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """What was measured."""

    clients: int
    #: The share of one core that the server used while all were idle.
    idle_share: float
    woken_by_one: int
    tasks: int
    wakeups: int
    pickups_ms: Sequence[float]

    def percentile_ms(self, percent: float) -> float:
        """The time within which this percentage of the tasks was picked up."""
        ordered = sorted(self.pickups_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def __str__(self) -> str:
        return (
            f"{self.clients:,} waiting clients: {self.idle_share:.1%} of a core while idle; one task woke "
            f"{self.woken_by_one}; {self.tasks:,} tasks, {self.wakeups:,} wake-ups, picked up within "
            f"p50 {self.percentile_ms(50):.1f} ms, p99 {self.percentile_ms(99):.1f} ms"
        )


# -- the clients, in processes of their own ------------------------------------------------------------------


def run_clients(url: str, count: int, wait_seconds: float, polls: Queue[Poll], stop: Event) -> None:
    """Runs this many clients on one event loop, until told to stop."""
    asyncio.run(_clients(url, count, wait_seconds, polls, stop))


async def _clients(url: str, count: int, wait_seconds: float, polls: Queue[Poll], stop: Event) -> None:
    store = open_store(url)
    clients = [asyncio.create_task(_client(store, wait_seconds, polls)) for _ in range(count)]
    await asyncio.to_thread(stop.wait)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await store.close()


async def _client(store: Store, wait_seconds: float, polls: Queue[Poll]) -> None:
    worker_id = secrets.token_hex(4)
    # As if they had begun one after the other, not all in the same second.
    wait_ms = wait_seconds * uniform(0, 1_000)  # noqa: S311
    while True:
        try:
            woken = await store.wait([QUEUE], round(wait_ms))
            polls.put(Poll(woken, await _poll(store, worker_id)))
        except StoreError:  # ten thousand who connect in the same second: the next wait is another try
            pass
        wait_ms = wait_seconds * uniform(900, 1_100)  # noqa: S311


async def _poll(store: Store, worker_id: str) -> tuple[float, ...]:
    request = Reserve(
        claim_id=secrets.token_hex(16),
        worker_id=worker_id,
        shares=[QueueShare(QUEUE, _TAKE)],
        max_tasks=_TAKE,
        lease_ms=_LEASE_MS,
    )
    tasks = (await store.reserve(request)).tasks
    now = time.time()
    await store.apply([lifecycle.ack(task.task_id, task.token) for task in tasks])
    return tuple((now - float(task.payload)) * 1000 for task in tasks)


# -- the measurement -----------------------------------------------------------------------------------------


def measure(
    server: RedisServer, clients: int, *, idle_seconds: float, tasks: int, per_second: int, wait_seconds: float = 20.0
) -> Figures:
    """The figures for this many clients on this server."""
    context = multiprocessing.get_context("spawn")
    polls: Queue[Poll] = context.Queue()
    with _waiting(context, server.url, clients, wait_seconds, polls):
        _until_waiting(server, clients)
        idle_share = _share_of_core(server, idle_seconds)
        _taken(polls)
        asyncio.run(_enqueue(server.url, 1, per_second))
        woken = _until_all_taken(polls, 1)
        _until_waiting(server, clients)
        woken += _taken(polls)
        asyncio.run(_enqueue(server.url, tasks, per_second))
        seen = _until_all_taken(polls, tasks)
    pickups = [pickup_ms for poll in seen for pickup_ms in poll.pickups_ms]
    wakeups = sum(poll.woken for poll in seen)
    return Figures(clients, idle_share, sum(poll.woken for poll in woken), tasks, wakeups, pickups)


@contextmanager
def _waiting(
    context: SpawnContext, url: str, clients: int, wait_seconds: float, polls: Queue[Poll]
) -> Iterator[list[SpawnProcess]]:
    stop = context.Event()
    sizes = [min(CLIENTS_A_PROCESS, clients - first) for first in range(0, clients, CLIENTS_A_PROCESS)]
    processes = [
        context.Process(target=run_clients, args=(url, size, wait_seconds, polls, stop), daemon=True) for size in sizes
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        stop.set()
        _join(processes)


def _join(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        process.join(30)
        if process.is_alive():
            process.kill()


async def _enqueue(url: str, count: int, per_second: int) -> None:
    store, ids = open_store(url), IdSource(lambda: time.time_ns() // 1_000_000, os.urandom)
    began_at = time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, began_at + number / per_second - time.monotonic()))
        payload = f"{time.time():.6f}".encode()
        await store.enqueue([NewTask(task_id=ids.task_id(), type="wait", queue=QUEUE, payload=payload)])
    await store.close()


def _until_all_taken(polls: Queue[Poll], count: int) -> list[Poll]:
    """All polls until this many tasks were picked up."""
    seen: list[Poll] = []
    while sum(len(poll.pickups_ms) for poll in seen) < count:
        seen.append(polls.get(timeout=60))
    return seen


def _taken(polls: Queue[Poll]) -> list[Poll]:
    """All polls that were reported by now."""
    seen: list[Poll] = []
    while not polls.empty():
        seen.append(polls.get())
    return seen


def _until_waiting(server: RedisServer, clients: int) -> None:
    """Returns when all are connected, and all wait but the few that are polling."""

    def waiting() -> bool:
        info = server.info("clients")
        return int(info["connected_clients"]) >= clients and int(info["blocked_clients"]) >= clients * _MOST

    eventually(waiting, _START_SECONDS, f"{clients} clients wait")


def _share_of_core(server: RedisServer, seconds: float) -> float:
    """Which share of one core the server uses in the next seconds."""
    used, began_at = _cpu_seconds(server.pid), time.monotonic()
    eventually(lambda: time.monotonic() - began_at >= seconds, 2 * seconds + 10, "the time has passed")
    return (_cpu_seconds(server.pid) - used) / (time.monotonic() - began_at)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_for(clients: int) -> RedisServer:
    """A server that takes this many connections."""
    profile = {**FAST, "maxmemory-policy": "noeviction", "maxclients": clients + _SPARE_CONNECTIONS}
    return RedisServer(profile=profile)


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m chaos.waiting", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to be idle, and then how long to be busy")
    parser.add_argument("--per-second", type=int, default=200, help="tasks")
    parser.add_argument("--wait", type=float, default=20.0, help="seconds after which a client polls")
    wanted = parser.parse_args()
    with server_for(wanted.clients) as server:
        figures = measure(
            server,
            wanted.clients,
            idle_seconds=wanted.seconds,
            tasks=round(wanted.seconds * wanted.per_second),
            per_second=wanted.per_second,
            wait_seconds=wanted.wait,
        )
    print(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
