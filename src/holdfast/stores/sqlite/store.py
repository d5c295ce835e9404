"""The SQLite store: the contract, each method one operation on the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from holdfast.clock import Clock
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import Enqueued, Extension, Hold, NewTask, Task
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.capabilities import Capabilities
from holdfast.stores.contract import (
    MAX_BATCH,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    Expired,
    Finding,
    Leadership,
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
from holdfast.stores.decorate import SinglePartition
from holdfast.stores.sqlite import claims, doctor, documents, enqueue, maintenance, queries, settlements
from holdfast.stores.sqlite.ballast import Use
from holdfast.stores.sqlite.engine import Engine
from holdfast.stores.sqlite.transaction import Transaction


class SqliteStore(SinglePartition):
    """Tasks in one SQLite file that several processes share, or in memory."""

    def __init__(self, path: str, *, url: str, clock: Clock) -> None:
        self.url = url
        self._path = path
        self._engine = Engine(path, clock)
        self.capabilities = Capabilities(enqueue_now=self._enqueue_now)

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Records tasks; durable when it returns."""
        return await self._engine.write(self._enqueue(tasks, map_version), Use.NEW_TASKS) if tasks else []

    def _enqueue_now(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued] | None:
        """As `enqueue`, in the thread of a sync caller; what goes wrong is left to `enqueue`."""
        if len(tasks) == 1 and self._engine.enqueue_now(tasks[0], map_version):
            self._engine.wakeups.notify((tasks[0].queue,))
            return [Enqueued(tasks[0].task_id)]
        try:
            return self._engine.write_now(self._enqueue(tasks, map_version), Use.NEW_TASKS) if tasks else []
        except StoreUnavailable as error:
            if error.tried_ms:  # it has waited already, as long as it may
                raise
            return None
        except HoldfastError:
            return None

    def _enqueue(self, tasks: Sequence[NewTask], map_version: int) -> Callable[[Transaction], list[Enqueued]]:
        def operation(transaction: Transaction) -> list[Enqueued]:
            documents.check_map(transaction, map_version, self.url)
            return enqueue.enqueue(transaction, tasks)

        return operation

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one transaction."""

        def operation(transaction: Transaction) -> Reserved:
            documents.check_map(transaction, request.map_version, self.url)
            verdicts = settlements.apply(transaction, settle)
            tasks, cut = claims.reserve(transaction, request)
            return Reserved(tasks, verdicts, cut)

        return await self._engine.write(operation)

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Renews leases and records progress, or only looks."""
        if not holds:
            return []
        if check_only:
            return await self._engine.read(lambda transaction: claims.check(transaction, holds))
        grows = any(hold.progress is not None for hold in holds)
        use = Use.SETTLEMENTS if grows else Use.MAINTENANCE
        return await self._engine.write(lambda transaction: claims.extend(transaction, holds, lease_ms), use)

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        return await self._engine.write(lambda transaction: settlements.apply(transaction, changes)) if changes else []

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until one of the wake-ups comes."""
        return await self._engine.wait(wakeups, timeout_ms)

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        return await self._engine.read(lambda transaction: queries.get(transaction, task_ids)) if task_ids else []

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first."""
        return await self._engine.read(lambda transaction: queries.find(transaction, query))

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return await self._engine.read(queries.counts)

    # -- documents ------------------------------------------------------------------------------------------

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        """One page of the documents of a kind."""

        def operation(transaction: Transaction) -> DocumentPage:
            return documents.page(transaction, kind, names, due_within_ms, cursor, limit)

        return await self._engine.read(operation)

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Replaces, creates or removes a document, with the tasks sent along."""
        use = Use.NEW_TASKS if write.tasks else Use.SETTLEMENTS
        return await self._engine.write(lambda transaction: documents.put(transaction, write, self.url), use)

    # -- workers and leadership -----------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives."""
        operation = partial(maintenance.announce, worker=worker, ttl_ms=ttl_ms)
        return await self._engine.write(operation, Use.MAINTENANCE)

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return await self._engine.read(maintenance.workers)

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Takes, renews or lets go a leadership, or only looks."""
        if owner is None:
            return await self._engine.read(lambda transaction: maintenance.leader(transaction, name))
        operation = partial(maintenance.lead, name=name, owner=owner, ttl_ms=ttl_ms)
        return await self._engine.write(operation, Use.MAINTENANCE)

    # -- maintenance ----------------------------------------------------------------------------------------

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        return await self._engine.write(partial(maintenance.promote, epoch=epoch, limit=limit), Use.MAINTENANCE)

    async def expired(self, limit: int = 1_000) -> Expired:
        """Claims whose lease has expired, and tasks that were not started in time."""
        found = await self._engine.read(lambda transaction: maintenance.expired(transaction, limit))
        if found.ahead:
            await self._engine.write(maintenance.shorten_leases, Use.MAINTENANCE)
        if not found.unstarted:
            return Expired(found.claims)  # as nearly always: the writers of other processes are not held up for it
        return Expired(found.claims, await self._engine.write(partial(maintenance.unstarted, limit=limit)))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        pruned, engine = 0, self._engine

        def operation(transaction: Transaction) -> tuple[int, bool]:
            nearly_full = engine.is_nearly_full()
            some = maintenance.prune(transaction, epoch, retention, limit - pruned, nearly_full=nearly_full)
            return some, nearly_full

        while pruned < limit:
            some, nearly_full = await engine.write(operation, Use.MAINTENANCE)
            pruned += some
            if not (some and nearly_full):  # else it was a small portion of what there is to delete
                break
        return pruned

    # -- life -----------------------------------------------------------------------------------------------

    async def probe(self) -> list[Finding]:
        """What can be said about file, settings and versions."""
        return await self._engine.write(lambda transaction: doctor.probe(transaction, self._path))

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings the schema up to this version."""
        return await (self._engine.pending() if dry_run else self._engine.migrate())

    async def close(self) -> None:
        """Ends threads and connections of this process."""
        await self._engine.close()
