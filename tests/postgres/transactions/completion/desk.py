"""A claimed task and the run of it, in this process, on a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg

from holdfast import current
from holdfast.clock import SystemClock
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change
from holdfast.core.task import Hold, NewTask, State, Task
from holdfast.stores.contract import Reserve, Store
from holdfast.stores.open import open_store
from holdfast.worker.child.execute import run_coroutine, run_function
from holdfast.worker.child.run import Run, RunContext
from tests.worker.rig import task_type

IDS: Final = IdSource(SystemClock().now_ms, os.urandom)
LEASE_MS: Final = 60_000
TABLE: Final = "CREATE TABLE IF NOT EXISTS written (task_id text, note text)"
WRITE: Final = "INSERT INTO written VALUES (%s, %s)"


class Desk:
    """A store with a table of the user's beside it; `url` is the way past any proxy."""

    def __init__(self, store: Store, url: str, lease_ms: int) -> None:
        self.store = store
        self._url = url
        self._lease_ms = lease_ms

    async def run_of(self, function: Callable[..., Any]) -> Run:
        """A task under a claim, ready to be run."""
        task = NewTask(task_id=IDS.task_id(), type="work", queue="default", payload=b"{}")
        await self.store.enqueue([task])
        request = Reserve(
            claim_id=IDS.claim_id(),
            worker_id="tester",
            shares=[QueueShare("default", 1)],
            max_tasks=1,
            lease_ms=self._lease_ms,
            types=frozenset({"work"}),
        )
        (claimed,) = (await self.store.reserve(request)).tasks
        is_async = asyncio.iscoroutinefunction(function)
        deadline_ms = SystemClock().monotonic_ms() + self._lease_ms
        context = RunContext(self.store, asyncio.get_running_loop(), self._lease_ms)
        return Run(1, claimed, task_type(function, is_async), 1, deadline_ms, context)

    async def perform(self, run: Run) -> Change | None:
        """Runs it as a worker does, and gives what is left to settle."""
        if not run.type.is_async:
            return await asyncio.to_thread(run_function, run)
        found: list[Change | None] = []

        async def execute() -> None:
            found.append(await run_coroutine(run))

        run.handle = asyncio.create_task(execute())
        await run.handle
        return found[0]

    async def done(self, function: Callable[..., Any]) -> tuple[Task, Change | None]:
        """A task of this function that was run, and what is left to settle."""
        run = await self.run_of(function)
        change = await self.perform(run)
        return await self.task(run), change

    async def task(self, run: Run) -> Task:
        """The task as the store knows it."""
        (task,) = await self.store.get([run.task.task_id])
        assert task is not None
        return task

    async def is_claimed(self, run: Run) -> bool:
        """Whether its claim is still current; asks as a heartbeat does, which must not have to wait."""
        async with asyncio.timeout(5):
            (extension,) = await self.store.extend([Hold(run.task.task_id, run.task.token)], self._lease_ms)
        return extension.held

    def notes(self) -> list[str]:
        """What was written and committed."""
        return [note for (note,) in self.query("SELECT note FROM written ORDER BY note")]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of one statement, none if it has none."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def desk(url: str, *, through: str | None = None, lease_ms: int = LEASE_MS) -> AsyncIterator[Desk]:
    """A desk on this database, its store perhaps reached through something."""
    store = open_store(through or url)
    found = Desk(store, url, lease_ms)
    found.query(TABLE)
    try:
        yield found
    finally:
        await store.close()


def succeeded(task: Task, change: Change | None) -> bool:
    """Whether the block has finished the task and left nothing to settle."""
    return task.state is State.SUCCEEDED and change is None


async def writes() -> None:
    """A task that writes a note and commits it."""
    async with current().transaction() as conn:
        await conn.execute(WRITE, (current().task_id, "coroutine"))
        current().set_result({"rows": 1})


def writes_in_thread() -> None:
    """The same in a thread."""
    with current().transaction() as conn:
        conn.execute(WRITE, (current().task_id, "thread"))
        current().set_result({"rows": 1})
