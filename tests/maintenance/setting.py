"""Nodes that look after a store whose clock the test moves, and the occurrences that they made."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.admin import schedules as actions
from holdfast.admin.inspect import every_page
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import Claimed, Task
from holdfast.maintenance import scheduler, service
from holdfast.maintenance.scheduler import Scheduler
from holdfast.maintenance.service import Maintenance
from holdfast.stores.contract import MAINTENANCE, Query, Reserve, Retention, Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.harness import StoreHarness

CALL = ScheduledCall(type="report")


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets nodes look and take over more often, since the test's clock does not wait for them."""
    monkeypatch.setattr(scheduler, "_SAFETY_POLL_MS", 15)
    monkeypatch.setattr(service, "LEADER_TTL_MS", 150)


class Rig:
    """One store, its clock, and one look at its schedules after the other."""

    def __init__(self, store: Store, clock: SteppedClock) -> None:
        self.store = store
        self.clock = clock
        self.ids = IdSource(clock.now_ms, random.randbytes)
        self.scheduler = Scheduler(store, 0)
        self._epoch = 0

    async def put(self, name: str = "s", call: ScheduledCall = CALL, **timing: Any) -> Schedule:
        return await actions.put(self.store, name, changed_timing(Timing(), **timing), call)

    async def look(self, after_ms: int = 0, *, until_idle: bool = True) -> int:
        """Lets time pass, and has the owner look at the schedules; how long it wants to sleep then."""
        self.clock.advance(after_ms)
        duty = await self.store.lead(MAINTENANCE, "node", 3_600_000)
        pause_ms = await self.scheduler.run_once(self.store, duty.epoch)
        while until_idle and pause_ms == scheduler._BREATH_MS:
            pause_ms = await self.scheduler.run_once(self.store, duty.epoch)
        return pause_ms

    async def tasks(self) -> list[Task]:
        """All tasks, the oldest first."""
        return sorted(await all_tasks(self.store), key=lambda task: task.task_id)

    async def occurrences(self, name: str = "s") -> list[str]:
        """The occurrences of a schedule that became tasks, in order."""
        return sorted(task.headers["occurrence"] for task in await self.tasks() if task.headers.get("schedule") == name)

    async def claim(self, count: int = 100) -> list[Claimed]:
        """Up to this many ready tasks, claimed for an hour."""
        request = Reserve(
            claim_id=self.ids.claim_id(),
            worker_id="w",
            shares=[QueueShare("default", count)],
            max_tasks=count,
            lease_ms=3_600_000,
        )
        return (await self.store.reserve(request)).tasks

    async def finish(self) -> int:
        """Runs whatever is ready to a good end; how many tasks that were."""
        claimed = await self.claim()
        await self.store.apply([lifecycle.ack(task.task_id, task.token) for task in claimed])
        return len(claimed)


def on_store(harness: StoreHarness, case: Callable[[Rig], Awaitable[None]]) -> None:
    """Runs a case on a fresh store."""

    async def run() -> None:
        store = await harness.open()
        try:
            await store.migrate()
            await case(Rig(store, harness.clock))
        finally:
            await store.close()
            await harness.destroy()

    asyncio.run(run())


@asynccontextmanager
async def nodes(harness: StoreHarness, count: int) -> AsyncIterator[None]:
    """So many processes' worth of maintenance on the same data, each on a store of its own."""
    stores = [await harness.open() for _ in range(count)]
    running = [
        asyncio.create_task(Maintenance(store, f"node-{n}", Retention(), random_unit=random.random).run())
        for n, store in enumerate(stores)
    ]
    try:
        yield
        assert not any(each.done() for each in running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for store in stores:
            await store.close()


async def all_tasks(store: Store) -> list[Task]:
    return [task async for page in every_page(store, Query(), 100_000) for task in page]


async def occurrences_made(store: Store) -> dict[str, Counter[str]]:
    """How often each occurrence of each schedule became a task."""
    made: dict[str, Counter[str]] = {}
    for task in await all_tasks(store):
        made.setdefault(task.headers["schedule"], Counter())[task.headers["occurrence"]] += 1
    return made


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  (other processes change it)
            await asyncio.sleep(0.005)
