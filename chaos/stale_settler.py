"""A client that holds claims until long after they have passed to others, and settles them then.

A claim counts as passed when the task was seen twice, some time apart, with a later claim: a later claim that was
seen once only could itself be lost together with a master that had not told its replicas.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Final

from chaos.journal import Journal
from chaos.tasks import QUEUES
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import fencing_token
from holdfast.core.task import FINAL_STATES, Hold, Task
from holdfast.errors import StoreError
from holdfast.stores.contract import MAX_BATCH, Reserve, Store

WORKER_ID: Final = "stale-settler"
_LEASE_MS: Final = 1_000
_CLAIMS: Final = 10
_PAUSE_SECONDS: Final = 0.25
_APART_SECONDS: Final = 2.0


@dataclass
class _Old:
    """A claim that is kept, and when it was first seen to have passed."""

    task_id: str
    token: str
    passed_at: float | None = None
    tried: int = 0


class StaleSettler:
    """Reserves a few tasks now and then, never runs them, and acknowledges every one too late."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: list[_Old] = []

    @property
    def has_claims(self) -> bool:
        """Whether it has ever claimed a task, so that there is something to settle too late."""
        return bool(self._kept)

    async def run(self, store: Store, stop: asyncio.Event) -> None:
        """Goes on until told to stop."""
        while not stop.is_set():
            try:
                await self._reserve(store)
                await self._settle_passed(store)
            except StoreError as error:
                self._journal.note("settler", str(error))
            await asyncio.sleep(_PAUSE_SECONDS)

    async def settle_all(self, store: Store) -> None:
        """Once more for every claim that it ever had, when all tasks have ended."""
        for first in range(0, len(self._kept), MAX_BATCH):
            await self._settle(store, self._kept[first : first + MAX_BATCH])

    async def _reserve(self, store: Store) -> None:
        shares = [QueueShare(queue, _CLAIMS // len(QUEUES)) for queue in QUEUES]
        request = Reserve(
            claim_id=secrets.token_hex(16), worker_id=WORKER_ID, shares=shares, max_tasks=_CLAIMS, lease_ms=_LEASE_MS
        )
        for task in (await store.reserve(request)).tasks:
            self._kept.append(_Old(task.task_id, task.token))
            self._journal.note("settler", f"keeps {task.token}", task.task_id)

    async def _settle_passed(self, store: Store) -> None:
        waiting = [old for old in self._kept if not old.tried][:MAX_BATCH]
        tasks = await store.get([old.task_id for old in waiting])
        now = time.monotonic()
        for old, task in zip(waiting, tasks, strict=True):
            if not _has_passed(old, task):
                old.passed_at = None
            elif old.passed_at is None:
                old.passed_at = now
        await self._settle(store, [old for old in waiting if old.passed_at and now - old.passed_at >= _APART_SECONDS])

    async def _settle(self, store: Store, claims: list[_Old]) -> None:
        if not claims:
            return
        verdicts = await store.apply([lifecycle.ack(old.task_id, old.token, b"-1") for old in claims])
        for old, verdict in zip(claims, verdicts, strict=True):
            old.tried += 1
            self._journal.stale_tried += 1
            if not verdict.applied and verdict.reason == "stale_claim":
                self._journal.stale_refused += 1
            else:
                self._journal.violated("R5 fencing", f"late ack with {old.token} got {verdict}", old.task_id)
        extensions = await store.extend([Hold(old.task_id, old.token) for old in claims], _LEASE_MS)
        for old, extension in zip(claims, extensions, strict=True):
            if extension.held:
                self._journal.violated("R5 fencing", f"late extend with {old.token} was accepted", old.task_id)


def _has_passed(old: _Old, task: Task | None) -> bool:
    return task is not None and (task.deliveries > fencing_token(old.token) or task.state in FINAL_STATES)
