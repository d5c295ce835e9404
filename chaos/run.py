"""One run: load, faults one after the other, healing, draining, and the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.support import eventually

from chaos.checker import Evidence, check
from chaos.faults import Deployment
from chaos.journal import Journal
from chaos.load import Load
from chaos.report import Report
from chaos.snapshot import Snapshot, take_snapshot
from chaos.trace import count_runs, read_trace
from chaos.workers import Workers, running_workers
from holdfast.core.ids import partition_of
from holdfast.core.task import FINAL_STATES
from holdfast.errors import StoreError
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store

#: Faults of the workers, which strike on every deployment.
WORKER_FAULTS: Final = ("kill_worker", "freeze_worker")
_PER_SECOND: Final = 800
_WORKERS: Final = 2
_LEASE: Final = "3s"
#: So many orders and runs must come through between two faults.
_PROGRESS: Final = 500
_RECOVERY_SECONDS: Final = 60.0
_DRAIN_SECONDS: Final = 120.0
_DRAIN_PAUSE_SECONDS: Final = 0.2


def run_faults(deployment: Deployment, plan: Sequence[str], *, seed: int, directory: Path) -> Report:
    """Strikes with each fault of the plan, under load, and checks everything at the end."""
    journal, trace = Journal(seed), directory / f"trace-{deployment.name}-{seed}.txt"
    with running_workers(deployment.worker_url or deployment.url, trace, _WORKERS, _LEASE) as workers:
        began_at = time.time()
        with Load(deployment.url, journal, _PER_SECOND) as load:
            _strike_all(_Field(deployment, workers, journal, load, trace), plan)
            load.finish()
        seconds = time.time() - began_at
        snapshot = asyncio.run(_conclude(deployment, load, journal))
        evidence = Evidence(journal, read_trace(trace), snapshot)
        complaints = [*workers.complaints(), *deployment.complaints()]
        return Report(deployment.name, seed, seconds, evidence, check(evidence), complaints)


class _Field:
    """Where faults strike: servers, workers, and the load that must come through."""

    def __init__(self, deployment: Deployment, workers: Workers, journal: Journal, load: Load, trace: Path) -> None:
        self.deployment = deployment
        self._workers = workers
        self._journal = journal
        self._load = load
        self._trace = trace
        self._random = Random(journal.seed)  # noqa: S311

    def strike(self, name: str) -> None:
        """One fault; returns when it is healed and the load comes through again."""
        begun = time.time()
        self._journal.faults.append((begun, name))
        self._journal.note("nemesis", f"{name} begins")
        what = self._strike_workers(name) if name in WORKER_FAULTS else self._strike_servers(name)
        self._journal.note("nemesis", f"{name} is healed: {what}")
        self.wait_for_progress()

    def wait_for_progress(self) -> None:
        """Returns when some more orders are acknowledged and some more tasks have run."""
        orders, runs = len(self._journal.acknowledged), count_runs(self._trace)

        def came_through() -> bool:
            acknowledged = len(self._journal.acknowledged) - orders
            return bool(self._load.broken) or (
                acknowledged >= _PROGRESS and count_runs(self._trace) - runs >= _PROGRESS
            )

        try:
            eventually(came_through, _RECOVERY_SECONDS, "the load comes through again")
        except AssertionError:
            acknowledged, ran = len(self._journal.acknowledged) - orders, count_runs(self._trace) - runs
            text = f"only {acknowledged} orders and {ran} runs in {_RECOVERY_SECONDS:g} s after a fault was healed"
            self._journal.violated("R16 recovery", text)

    def _strike_servers(self, name: str) -> str:
        return self.deployment.faults[name](self._key_in_use(), self._random)

    def _strike_workers(self, name: str) -> str:
        return self._workers.kill_one(self._random) if name == "kill_worker" else self._workers.freeze_one(self._random)

    def _key_in_use(self) -> str:
        """The key of the partition in which a task was just recorded."""
        known = [order.task_id for order in list(self._journal.orders.values())[-1_000:] if order.task_id]
        return f"{{hf:{partition_of(self._random.choice(known)) if known else 0}}}"


def _strike_all(field: _Field, plan: Sequence[str]) -> None:
    try:
        field.wait_for_progress()
        for name in plan:
            field.strike(name)
    finally:
        field.deployment.heal()


async def _conclude(deployment: Deployment, load: Load, journal: Journal) -> Snapshot:
    """Drains, lets the stale settler try everything again, and looks at all that is there."""
    store = open_store(deployment.url)
    try:
        await _drain(store, journal)
        await load.settler.settle_all(store)
        return await take_snapshot(store, deployment.read)
    finally:
        await store.close()


async def _drain(store: Store, journal: Journal) -> None:
    deadline = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < deadline:
        try:
            open_tasks = sum(
                count
                for queue in await store.counts()
                for state, count in queue.states.items()
                if state not in FINAL_STATES
            )
        except StoreError as error:
            journal.note("drain", str(error))
        else:
            if not open_tasks:
                return
        await asyncio.sleep(_DRAIN_PAUSE_SECONDS)
    journal.note("drain", f"not drained within {_DRAIN_SECONDS:g} s")
