"""The SQLite store: the contract, each method one operation on the engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import Claimed, Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import (
    Discard,
    Document,
    DueSchedules,
    Duty,
    Finding,
    Kept,
    Page,
    Promoted,
    Query,
    QueueCounts,
    Reserve,
    Reserved,
    Retention,
    WorkerOrders,
    WorkerRecord,
)
from holdfast.stores.single import SinglePartition
from holdfast.stores.sqlite import (
    dividing,
    documents,
    keeping,
    looking,
    probing,
    recording,
    reserving,
    scheduling,
    settling,
    upkeep,
)
from holdfast.stores.sqlite.connection import pending
from holdfast.stores.sqlite.engine import Engine
from holdfast.stores.sqlite.transaction import Transaction


class SqliteStore(SinglePartition):
    """Tasks in one SQLite file that several processes share, or in memory."""

    def __init__(self, path: str, *, url: str, clock: Clock) -> None:
        self.url = url
        self._path = path
        self._clock = clock
        self._pid = os.getpid()
        self._engine = Engine(path, clock)
        self._left_behind: list[Engine] = []

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records tasks; durable when it returns."""
        version = self.map_version

        def operation(work: Transaction) -> list[Enqueued]:
            dividing.check_map(work, version, self.url)
            return recording.enqueue(work, tasks)

        return await self._here().write(operation, adds=True) if tasks else []

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one transaction."""
        version = self.map_version

        def operation(work: Transaction) -> tuple[list[Verdict], list[Claimed]]:
            dividing.check_map(work, version, self.url)
            return settling.apply(work, settle), reserving.reserve(work, request)

        verdicts, tasks = await self._here().write(operation)
        return Reserved(tasks, verdicts)

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Renews leases and records progress."""
        return await self._here().write(lambda work: reserving.extend(work, holds, lease_ms)) if holds else []

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        return await self._here().write(lambda work: settling.apply(work, changes)) if changes else []

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Keeps a value under a key."""
        return await self._here().write(lambda work: keeping.keep(work, key, value, ttl_ms, hold))

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        return await self._here().write(lambda work: upkeep.promote(work, epoch, limit))

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out."""
        return await self._here().read(lambda work: upkeep.expired(work, limit))

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Tasks that should have begun by now."""
        if not await self._here().read(upkeep.deadline_has_passed):
            return []  # as nearly always: the writers of other processes are not held up for it
        return await self._here().write(lambda work: upkeep.overdue(work, limit))

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until a bell is rung."""
        return await self._here().bells.wait(bells, timeout_ms)

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        return await self._here().read(lambda work: looking.get(work, task_ids)) if task_ids else []

    async def kept(self, key: str) -> bytes | None:
        """What is kept under a key."""
        return await self._here().read(lambda work: keeping.kept(work, key))

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first."""
        return await self._here().read(lambda work: looking.find(work, query))

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return await self._here().read(looking.counts)

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return await self._here().read(upkeep.workers)

    async def discards(self, limit: int = 100) -> list[Discard]:
        """Records of discarded tasks."""
        return await self._here().read(lambda work: looking.discards(work, limit))

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives."""
        return await self._here().write(lambda work: upkeep.announce(work, worker, ttl_ms))

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Leaves orders for a worker."""
        return await self._here().write(lambda work: upkeep.order(work, worker_id, orders))

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Takes, keeps or lets go a duty."""
        return await self._here().write(lambda work: upkeep.hold_duty(work, name, owner, ttl_ms))

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes a queue."""
        await self._here().write(lambda work: upkeep.pause(work, queue, paused))

    async def set_step(self, queue: str, step_ms: int) -> None:
        """What a level of priority is worth in a queue."""
        await self._here().write(lambda work: upkeep.set_step(work, queue, step_ms))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        return await self._here().write(lambda work: upkeep.prune(work, epoch, retention, limit))

    async def probe(self) -> list[Finding]:
        """What can be said about file, settings and versions."""
        return await self._here().write(lambda work: probing.probe(work, self._path))

    # -- schedules ------------------------------------------------------------------------------------------

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Schedules by their next tick."""
        return await self._here().read(lambda work: scheduling.schedules(work, due_within_ms, limit))

    async def schedule(self, name: str) -> Schedule | None:
        """One schedule."""
        return await self._here().read(lambda work: scheduling.schedule(work, name))

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Replaces a schedule and records the tasks of its ticks."""
        version = self.map_version

        def operation(work: Transaction) -> bool:
            if epoch is not None:
                work.check_epoch(epoch)
            elif tasks:
                dividing.check_map(work, version, self.url)
            return scheduling.put(work, name, new, expected, tasks)

        return await self._here().write(operation, adds=bool(tasks))

    # -- documents ------------------------------------------------------------------------------------------

    async def documents(self, kind: str) -> list[Document]:
        """All documents of a kind."""
        return await self._here().read(lambda work: documents.all_of(work, kind))

    async def document(self, kind: str, name: str) -> Document | None:
        """One document."""
        return await self._here().read(lambda work: documents.get(work, kind, name))

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Replaces or removes a document."""
        return await self._here().write(lambda work: documents.put(work, kind, name, value, expected))

    # -- partitions -----------------------------------------------------------------------------------------

    async def partition_map(self) -> PartitionMap:
        """The partition map that this file keeps."""
        return await self._here().read(dividing.partition_map)

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Keeps a new partition map."""
        return await self._here().write(lambda work: dividing.put_partition_map(work, new))

    # -- life -----------------------------------------------------------------------------------------------

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings the schema up to this version."""
        if not dry_run:
            return await self._here().migrate()
        # What is in memory is made by whoever opens it, and is never old.
        return await asyncio.to_thread(pending, self._path) if self._path else []

    async def close(self) -> None:
        """Ends threads and connections of this process."""
        await self._here().close()

    def _here(self) -> Engine:
        """The engine of this process: a connection must never be carried across a fork."""
        if self._pid != os.getpid():
            if not self._path:
                raise StoreUnavailable("sqlite:// lives in the memory of one process and does not survive a fork")
            # Kept, not closed: closing here would meddle with files that the parent still uses.
            self._left_behind.append(self._engine)
            self._engine = Engine(self._path, self._clock)
            self._pid = os.getpid()
        return self._engine
