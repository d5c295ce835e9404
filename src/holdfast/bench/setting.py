"""What every scenario is handed: its size, its store, its queue, and ways to wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.app import Holdfast
from holdfast.bench.processes import MeasuredProcess, measured_worker
from holdfast.bench.tasks import BenchTasks, declare
from holdfast.core.task import FINAL_STATES, Task
from holdfast.errors import ResultTimeout
from holdfast.stores.contract import MAX_BATCH, Store
from holdfast.stores.open import open_store

_DEADLINE_S = 600
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each scenario does."""

    tasks: int = 200_000
    bare: int = 100_000
    singles: int = 3_000
    concurrent: int = 20_000
    pickups: int = 300
    due: int = 2_000
    due_in_s: float = 3.0
    idle_s: float = 10.0
    #: At least this many tasks of low priority wait while those of high priority are picked up.
    low: int = 100_000
    backlog: int = 1_000_000
    #: Clients that wait at a server, each for `poll_s`, over connections of their own.
    pollers: int = 2_000
    poll_s: float = 20.0
    crowd_s: float = 30.0
    concurrency: int = 200

    @classmethod
    def quick(cls) -> Sizes:
        """A tenth of it: good for a look, too short for a comparison."""
        return cls(
            tasks=20_000,
            bare=20_000,
            singles=500,
            concurrent=3_000,
            pickups=60,
            idle_s=3.0,
            low=10_000,
            pollers=200,
            poll_s=5.0,
            crowd_s=5.0,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """One bench run: where it may write, and on which store."""

    directory: Path
    sizes: Sizes
    #: None: a fresh SQLite file for every scenario.
    url: str | None = None
    #: What the store is, in words, if the URL does not say it.
    described: str = ""
    #: A store to compare with.
    beside: str | None = None

    @property
    def scheme(self) -> str:
        """The kind of store, as its URL names it."""
        return (self.url or "sqlite:").partition(":")[0]

    def store_url(self, scenario: str) -> str:
        """The store of one scenario."""
        return self.url or f"sqlite:///{self.directory / scenario}.db"

    @asynccontextmanager
    async def store(self, scenario: str) -> AsyncIterator[Store]:
        """The scenario's store, opened and closed."""
        store = open_store(self.store_url(scenario))
        try:
            await store.migrate()
            yield store
        finally:
            await store.close()

    @contextmanager
    def tasks(self, scenario: str) -> Iterator[tuple[Holdfast, BenchTasks]]:
        """An app on the scenario's store, on a queue of its own."""
        with Holdfast(self.store_url(scenario), queue=self.queue(scenario)) as app:
            yield app, declare(app)

    @contextmanager
    def worker(self, scenario: str) -> Iterator[MeasuredProcess]:
        """A real worker on the scenario's queue."""
        url, queue = self.store_url(scenario), self.queue(scenario)
        with measured_worker(url, queue, self.sizes.concurrency, self.directory) as worker:
            yield worker

    def queue(self, scenario: str) -> str:
        """A queue that no other run uses."""
        return f"bench-{self.directory.name[-8:]}-{scenario}"


async def finished(store: Store, task_ids: Sequence[str], worker: MeasuredProcess) -> list[Task]:
    """These tasks, once all of them have ended."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        worker.check()
        tasks = await look(store, task_ids)
        if all(task.state in FINAL_STATES for task in tasks):
            return tasks
        await asyncio.sleep(_POLL_S)
    raise ResultTimeout(f"the worker did not finish its tasks in {_DEADLINE_S} s")


async def look(store: Store, task_ids: Sequence[str]) -> list[Task]:
    """What the store knows of these tasks now."""
    found: list[Task] = []
    for start in range(0, len(task_ids), MAX_BATCH):
        found.extend(task for task in await store.get(task_ids[start : start + MAX_BATCH]) if task is not None)
    return found
