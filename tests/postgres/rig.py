"""Stores on one database, on one clock that tests move, and short ways to make and claim tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, cycle, islice
from typing import Any

from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.task import Claimed, NewTask
from holdfast.stores.contract import Reserve, Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.kit import ack
from tests.postgres.schemas import ask

BATCH = 100
_serial = count(1)


class Rig:
    """Opened stores on one database, on one stepped clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = SteppedClock()
        self.ids = IdSource(self.clock.now_ms, lambda size: next(_serial).to_bytes(size, "big"))

    def open(self) -> Store:
        """A store, as another process would open it."""
        return open_store(self.url, clock=self.clock)

    def task(self, **fields: Any) -> NewTask:
        """A plain task with a new id."""
        return NewTask(**{"task_id": self.ids.task_id(), "type": "t", "queue": "q", "payload": b"{}", **fields})

    def tasks(self, number: int, priorities: Sequence[int] = (0,)) -> list[NewTask]:
        """So many, whose priorities take turns."""
        return [self.task(priority=priority) for priority in islice(cycle(priorities), number)]

    async def claim(self, store: Store, number: int = BATCH, settle: Sequence[Claimed] = ()) -> list[Claimed]:
        """Claims so many, and acks others."""
        request = Reserve(
            claim_id=self.ids.claim_id(),
            worker_id="w",
            shares=[QueueShare("q", number)],
            max_tasks=number,
            lease_ms=30_000,
        )
        return (await store.reserve(request, [ack(claim) for claim in settle])).tasks

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """What the database itself says."""
        return ask(self.url, statement)
