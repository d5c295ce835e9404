"""Runs the demo from start to summary."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.clock import SystemClock
from holdfast.demo.producer import DemoProducer
from holdfast.demo.snapshot import Snapshot, Summary, look, summary
from holdfast.demo.worker_process import WorkerProcess
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store

#: The demo's queues and their shares of the worker.
QUEUES = {"fast": 4, "flaky": 3, "delayed": 2, "slow": 1}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of demo."""

    url: str
    worker_log: Path
    #: None: until the user stops it.
    duration_ms: int | None
    processes: int = 1
    #: Keeps the queues of this run apart from what else is in the store.
    queue_suffix: str = ""

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues of this run."""
        return tuple(f"{name}{self.queue_suffix}" for name in QUEUES)

    @property
    def weights(self) -> str:
        """The queues as the worker takes them."""
        return ",".join(f"{name}{self.queue_suffix}={weight}" for name, weight in QUEUES.items())


class Screen(Protocol):
    """Where the demo shows itself."""

    #: How often it wants to be shown something.
    interval_ms: int

    def show(self, snapshot: Snapshot, elapsed_ms: int, enqueued: int) -> None:
        """Shows how it stands."""
        ...


class Stopper:
    """Ctrl-C: the first one ends the demo, the next ones hurry the worker."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.asked = asyncio.Event()
        self._worker = worker

    def __call__(self) -> None:
        """One signal."""
        if self.asked.is_set():
            self._worker.hurry()
        self.asked.set()


async def run(plan: Plan, screen: Screen) -> Summary:
    """Submits, works, shows, stops the worker gracefully, and counts."""
    store = open_store(plan.url)
    try:
        await store.migrate()
        return await _run(plan, screen, store)
    finally:
        await store.close()


async def _run(plan: Plan, screen: Screen, store: Store) -> Summary:
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    producer = DemoProducer(store, plan.queue_suffix)
    worker = await WorkerProcess.start(plan.url, plan.weights, plan.processes, plan.worker_log)
    stopper = Stopper(worker)
    with _signals(stopper):
        try:
            await _lively(plan, screen, store, producer, worker, stopper)
        finally:
            await worker.stop()
    end = await look(store, plan.queues, clock.now_ms())
    screen.show(end, clock.monotonic_ms() - started_ms, producer.enqueued)
    return summary(
        end,
        enqueued=producer.enqueued,
        url=plan.url,
        seconds=(clock.monotonic_ms() - started_ms) / 1000,
        worker_log=str(plan.worker_log),
    )


async def _lively(
    plan: Plan, screen: Screen, store: Store, producer: DemoProducer, worker: WorkerProcess, stopper: Stopper
) -> None:
    """Runs all parts at once, until the time is over, the user stops it, or a part fails."""
    parts = [
        asyncio.create_task(producer.run()),
        asyncio.create_task(worker.watch()),
        asyncio.create_task(_show(plan, screen, store, producer)),
        asyncio.create_task(stopper.asked.wait()),
    ]
    timeout = None if plan.duration_ms is None else plan.duration_ms / 1000
    done, left = await asyncio.wait(parts, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for part in left:
        part.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for part in done:
        part.result()


async def _show(plan: Plan, screen: Screen, store: Store, producer: DemoProducer) -> None:
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    before: Snapshot | None = None
    while True:
        now = await look(store, plan.queues, clock.now_ms(), before)
        screen.show(now, clock.monotonic_ms() - started_ms, producer.enqueued)
        before = now
        await asyncio.sleep(screen.interval_ms / 1000)


@contextlib.contextmanager
def _signals(stopper: Stopper) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopper)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
