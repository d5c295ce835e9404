"""One run: load, faults one after the other, healing, draining, and the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.checker import Evidence, check
from chaos.faults import Deployment
from chaos.field import WORKER_FAULTS, Field
from chaos.journal import Journal, moment
from chaos.report import Report
from chaos.snapshot import Snapshot, take_snapshot
from chaos.stresses import COMMON
from chaos.trace import read_trace
from chaos.workers import running_workers
from holdfast.core.task import FINAL_STATES
from holdfast.errors import StoreError
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store

_WORKERS: Final = 2
_DRAIN_SECONDS: Final = 120.0
_DRAIN_PAUSE_SECONDS: Final = 0.2


def faults_of(deployment: Deployment) -> list[str]:
    """The names of all faults that can strike there."""
    return sorted({*deployment.faults, *deployment.stresses, *WORKER_FAULTS, *COMMON})


def run_faults(deployment: Deployment, plan: Sequence[str], *, seed: int, directory: Path) -> Report:
    """Strikes with each fault of the plan, under load, and checks everything at the end."""
    journal, trace = Journal(seed), directory / f"trace-{deployment.name}-{seed}.txt"
    with running_workers(deployment, trace, _WORKERS) as workers:
        began_at = moment()
        with Field(deployment, workers, journal, trace) as field:
            _strike_all(field, plan)
            field.wait_for_stale_claims()
            field.cancel_later()
            field.end_load()
        seconds = moment() - began_at
        if journal.steps:
            journal.steps.append(moment())
            deployment.catch_up()
        snapshot = asyncio.run(_conclude(deployment, field))
        evidence = Evidence(journal, read_trace(trace), snapshot, spares_claims=deployment.spares_claims)
        complaints = [*workers.complaints(), *deployment.complaints()]
        return Report(deployment.name, seed, seconds, evidence, check(evidence), complaints)


def _strike_all(field: Field, plan: Sequence[str]) -> None:
    try:
        field.wait_for_progress()
        for name in plan:
            field.strike(name)
    finally:
        field.deployment.heal()


async def _conclude(deployment: Deployment, field: Field) -> Snapshot:
    """Drains, lets the stale settler try everything again, and looks at all that is there."""
    store = open_store(deployment.url)
    try:
        await _drain(store, field.journal)
        await field.settler.settle_all(store)
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
