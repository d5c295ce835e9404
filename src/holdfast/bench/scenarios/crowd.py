"""Thousands of clients that wait at one server: what that costs, and how soon one of them has a task."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from holdfast.bench.figures import Figure, percentile
from holdfast.bench.measured_server import MeasuredServer
from holdfast.bench.pollers import Crowd, Said
from holdfast.errors import BadOption, ResultTimeout, StoreUnavailable
from holdfast.runtime import descriptors

_SCENARIO: Final = "crowd"
_PROCESSES: Final = 2
_SETTLE_S: Final = 2.0
_DEADLINE_S: Final = 60.0
#: Descriptors of a server besides those of its clients.
_OTHERS: Final = 200


def check(pollers: int) -> None:
    """Refuses, before anything is measured, a crowd that this system would not let in."""
    limit = descriptors.allow_many()
    if limit < pollers + _OTHERS:
        raise BadOption(
            f"{pollers:,} clients need {pollers + _OTHERS:,} descriptors, and {limit:,} are allowed: raise ulimit -n"
        )


async def measure(server: MeasuredServer) -> list[Figure]:
    """What it costs while nothing comes, and then how tasks that come one by one are picked up."""
    async with _crowd(server) as received:
        await asyncio.sleep(_SETTLE_S)
        figures = await _idle(server, server.setting.sizes.crowd_s)
        return figures + await _pickup(server, received)


def _title(server: MeasuredServer) -> str:
    return f"{server.setting.sizes.pollers:,} clients"


async def _idle(server: MeasuredServer, seconds: float) -> list[Figure]:
    calls, begin, used = await server.store_calls(), time.perf_counter(), server.process.cpu_seconds()
    await asyncio.sleep(seconds)
    spent, elapsed = server.process.cpu_seconds() - used, time.perf_counter() - begin
    made = sum((await server.store_calls()).values()) - sum(calls.values())
    title = _title(server)
    return [
        Figure("server_crowd_cpu", f"{title}: share of the processor", 100 * spent / elapsed, "% of a core"),
        Figure("server_crowd_calls", f"{title}: calls to the store", made / elapsed, "calls/s"),
        Figure("server_crowd_memory", f"{title}: memory of the server", server.process.memory_mb(), "MB"),
    ]


async def _pickup(server: MeasuredServer, received: dict[str, float]) -> list[Figure]:
    """From the call of enqueue to the moment when a client has read the task."""
    called: dict[str, float] = {}
    looks = (await server.store_calls()).get("reserve", 0)
    with server.setting.tasks(_SCENARIO) as (_, tasks):
        await tasks.noop.aenqueue(0, "opens the store")
        for number in range(server.setting.sizes.pickups):
            await asyncio.sleep(random.uniform(0.01, 0.06))  # noqa: S311
            at = time.time()
            called[(await tasks.noop.aenqueue(number, "some text")).task_id] = at
    await _until(lambda: called.keys() <= received.keys())
    made = (await server.store_calls()).get("reserve", 0) - looks
    title = _title(server)
    waits = [1000 * (received[task_id] - at) for task_id, at in called.items()]
    return [
        Figure("server_crowd_p50", f"{title}: enqueue call to receipt, p50", percentile(waits, 0.50), "ms"),
        Figure("server_crowd_p99", f"{title}: enqueue call to receipt, p99", percentile(waits, 0.99), "ms"),
        Figure("server_crowd_looks", f"{title}: reserves at the store for a task", made / (len(called) + 1), "calls"),
    ]


@asynccontextmanager
async def _crowd(server: MeasuredServer) -> AsyncIterator[dict[str, float]]:
    """Clients that wait, and what they have received so far, by task and time; they are gone after the block."""
    received: dict[str, float] = {}
    count, rest = divmod(server.setting.sizes.pollers, _PROCESSES)
    async with AsyncExitStack() as stack:
        for number in range(_PROCESSES):
            await stack.enter_async_context(_part(server, count + (number < rest), received))
        yield received


@asynccontextmanager
async def _part(server: MeasuredServer, count: int, received: dict[str, float]) -> AsyncIterator[None]:
    """One process of clients that wait."""
    crowd = Crowd(
        port=server.port,
        token=server.token,
        queue=server.setting.queue(_SCENARIO),
        count=count,
        poll_s=server.setting.sizes.poll_s,
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast.bench.pollers",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    waits = asyncio.Event()
    reading = asyncio.create_task(_read(process, waits, received))
    try:
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(crowd) + b"\n")
        await asyncio.wait_for(waits.wait(), _DEADLINE_S)
        _check(reading)
        yield
        _check(reading)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await reading


async def _read(process: asyncio.subprocess.Process, waits: asyncio.Event, received: dict[str, float]) -> None:
    if process.stdout is None:
        return
    async for line in process.stdout:
        said = msgspec.json.decode(line, type=Said)
        if said.task_id is None:
            waits.set()
        else:
            received[said.task_id] = said.at
    waits.set()


def _check(reading: asyncio.Task[None]) -> None:
    if reading.done():
        raise StoreUnavailable("clients that were to wait at the server have ended")


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise ResultTimeout(f"not all tasks were received in {_DEADLINE_S:g} s")
        await asyncio.sleep(0.05)
