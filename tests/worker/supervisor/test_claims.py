"""Orphaned claims: those of a child whose last reserve commits after its exit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.core.fairness import QueueShare
from holdfast.core.task import NewTask, State, Task
from holdfast.stores.contract import Reserve, Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import Held, Hello
from holdfast.worker.supervisor import claims as claims_module
from holdfast.worker.supervisor.claims import WorkerClaims
from tests.worker.rig import IDS
from tests.worker.supervisor.fakes import FakeProcess, pool_of


class Stage:
    """A worker whose child has exited with a reserve on its way."""

    def __init__(self, store: Store) -> None:
        clock = SteppedClock()
        self.store = store
        self.child = FakeProcess()
        self.child.say(Held(1, asking="late"))
        self.claims = WorkerClaims(
            store, Hello("sqlite://", 30_000, ("t",)), WorkerOptions(app="a"), pool_of(clock, self.child), clock
        )
        self._task_id = IDS.task_id()

    async def late_reserve(self) -> None:
        """The store commits the reserve of the exited child."""
        await self.store.enqueue([NewTask(task_id=self._task_id, type="t", queue="default", payload=b"{}")])
        share = [QueueShare("default", 1)]
        worker_id = self.child.worker_id
        request = Reserve(claim_id="late", worker_id=worker_id, shares=share, max_tasks=1, lease_ms=30_000)
        assert (await self.store.reserve(request)).tasks

    async def task(self) -> Task:
        (found,) = await self.store.get([self._task_id])
        assert found is not None
        return found


def on_stage(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def play() -> None:
        store = open_store("sqlite://")
        try:
            async with asyncio.timeout(20):
                await scenario(Stage(store))
        finally:
            await store.close()

    asyncio.run(play())


def test_a_reserve_that_commits_after_the_exit_of_its_child_is_found_by_a_later_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims_module, "ORPHAN_CHECKS_S", (0.0, 0.0))

    async def scenario(stage: Stage) -> None:
        assert await stage.claims.settle(stage.child, "was killed by SIGKILL") == 0
        (checking,) = stage.claims._orphan_checks
        await stage.late_reserve()
        await checking
        task = await stage.task()
        assert (task.state, [attempt.outcome for attempt in task.history]) == (State.READY, ["worker_lost"])
        assert not stage.claims._orphan_checks

    on_stage(scenario)


def test_a_worker_that_leaves_settles_orphaned_claims_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "ORPHAN_CHECKS_S", (3_600.0,))

    async def scenario(stage: Stage) -> None:
        stage.child.dismissed = True
        assert await stage.claims.settle(stage.child, "was killed by SIGKILL") == 0
        await stage.late_reserve()
        found: list[Task] = []
        close = stage.store.close

        async def look_and_close() -> None:
            found.append(await stage.task())
            await close()

        monkeypatch.setattr(stage.store, "close", look_and_close)
        await stage.claims.leave(10)
        assert [attempt.outcome for attempt in found[0].history] == ["released"]
        monkeypatch.undo()

    on_stage(scenario)


def test_a_child_that_drained_is_not_checked_again() -> None:
    async def scenario(stage: Stage) -> None:
        stage.child.drained = True
        await stage.claims.settle(stage.child, "exited with code 0")
        assert not stage.claims._orphan_checks

    on_stage(scenario)
