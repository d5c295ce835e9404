"""The PostgreSQL store: the contract, each method one function of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.core.ids import check_task_id
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import FINAL_STATES, Enqueued, Extension, Hold, NewTask, Task
from holdfast.errors import UnknownTask
from holdfast.stores.capabilities import Capabilities
from holdfast.stores.contract import (
    MAX_PAGE,
    SILENT_WORKER_MS,
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
from holdfast.stores.decode import bad_cursor
from holdfast.stores.documents import orders_of
from holdfast.stores.postgres import answers, doctor
from holdfast.stores.postgres.arguments import batch, hold_columns, known_id
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.claims import Exchanges
from holdfast.stores.postgres.completion import Completions, PostgresCompletion
from holdfast.stores.postgres.documents import Documents
from holdfast.stores.postgres.encoding import uuids
from holdfast.stores.postgres.within import PostgresWithin

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Database

#: After this long a search gives the page as far as it is, and the cursor to go on from.
_SEARCH_MS: Final = 2_000
#: The maintenance leader updates the cursors and the tally about this often.
_TIDY_MS: Final = 1_000


class PostgresStore(Documents):
    """One partition in one schema of a PostgreSQL database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self.url = database.url
        self._database = database
        self._call = Calls(database, clock)
        self._exchanges = Exchanges(self._call, database)
        self._completions = Completions(database.settings, self._call.now)
        self._monotonic_ms = SystemClock().monotonic_ms
        self._tidy_at_ms = 0
        self.capabilities = Capabilities(
            enqueue_now=self._enqueue_now,
            within=PostgresWithin(database, self._call, self._call.now),
            completion=self._completion,
        )

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Records tasks; as safe as the durability level says when it returns."""
        if not tasks:
            return []
        with answers.refusals():
            rows = await self._call(
                "enqueue",
                self._call.now(),
                map_version,
                batch(tasks),
                safe=True,
                may_lock=any(task.request_id is not None for task in tasks),
            )
        enqueued, wakeups = answers.recorded(self.url, tasks, rows)
        self._database.notify(wakeups)
        return enqueued

    def _enqueue_now(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued] | None:
        """Enqueues tasks that are ready at once if the server simply says so; all else is left to `enqueue`."""
        if not tasks or any(task.delay_ms or task.run_at_ms is not None for task in tasks):
            return None
        arguments = (self._call.now(), map_version, batch(tasks))
        size = sum(len(task.payload) for task in tasks)
        rows = self._database.direct.enqueue(arguments, size, {task.queue for task in tasks})
        if rows is None or (rows and rows[0][0] == "stale_map"):
            return None
        enqueued, _ = answers.recorded(self.url, tasks, rows)
        return enqueued

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one call."""
        return await self._exchanges.reserve(request, settle)

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Renews leases and records progress."""
        if not holds:
            return []
        columns = hold_columns(holds)
        if check_only:
            rows = await self._call("check_claims", *columns[:2])
        else:
            rows = await self._call("extend", self._call.now(), lease_ms, *columns)
        return [Extension(held, cancel_requested, reason) for held, cancel_requested, reason in rows]

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        return await self._exchanges.apply(changes) if changes else []

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        now_ms = self._monotonic_ms()
        tidies = now_ms >= self._tidy_at_ms
        [(current, count, next_due_in_ms, wakeups)] = await self._call(
            "promote", self._call.now(), epoch, limit, tidies
        )
        answers.check_epoch(epoch, current)
        if tidies:
            self._tidy_at_ms = now_ms + _TIDY_MS
        self._database.notify(wakeups or ())
        return Promoted(count, next_due_in_ms)

    async def expired(self, limit: int = 1_000) -> Expired:
        """Claims whose lease has expired, and tasks not started in time."""
        return answers.expired(await self._call("expired", self._call.now(), limit))

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until one of these wake-ups comes."""
        await self._call.prepare()
        return await self._database.wait(wakeups, timeout_ms)

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        found = {row[0]: answers.task(row) for row in await self._rows_of(task_ids)}
        return [found.get(task_id) for task_id in task_ids]

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first: in the order of their ids."""
        limit = max(1, min(query.limit, MAX_PAGE))
        ids, cursor = await self._search(query, limit)
        tasks = {row[0]: answers.task(row, with_history=False) for row in await self._rows_of(ids)}
        # One that moved on meanwhile is shown as it is now; one that was deleted is left out.
        page = [tasks[task_id] for task_id in ids if task_id in tasks]
        return Page(page, cursor, [task.task_id for task in page])

    async def _search(self, query: Query, limit: int) -> tuple[list[str], str | None]:
        """Ids, and from where to go on: where the page is full, or how far the search came in its time."""
        ids: list[str] = []
        position = _position(query.cursor)
        ends_at_ms = self._monotonic_ms() + _SEARCH_MS
        while True:
            rows = await self._call(
                "find",
                None if query.states is None else [state.value for state in query.states],
                query.queue,
                query.type,
                query.worker_id,
                query.error_type,
                position,
                limit + 1 - len(ids),
            )
            ids += [task_id for task_id, matches in rows if matches]
            if len(ids) > limit:
                return ids[:limit], ids[limit - 1]
            if not rows or rows[-1][1]:
                return ids, None
            position = rows[-1][0]
            if self._monotonic_ms() >= ends_at_ms:
                return ids, position

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return answers.counts(await self._call("depths", self._call.now()))

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return [answers.worker(row) for row in await self._call("all_workers", self._call.now())]

    # -- workers, leadership, maintenance -----------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives, and gives its orders."""
        record = msgspec.json.encode(worker)
        rows = await self._call("put_worker", self._call.now(), worker.worker_id, record, ttl_ms)
        return orders_of(rows[0][0] if rows else None)

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Takes, renews or lets go a leadership, or looks at it."""
        if owner is None:
            [row] = await self._call("leader", self._call.now(), name)
        else:
            [row] = await self._call("lead", self._call.now(), name, owner, ttl_ms, safe=True)
        return Leadership(name, *row)

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        states = sorted(FINAL_STATES)
        [(current, pruned)] = await self._call(
            "prune",
            self._call.now(),
            epoch,
            [state.value for state in states],
            retention.keep,
            retention.discards_ms,
            SILENT_WORKER_MS,
            limit,
        )
        answers.check_epoch(epoch, current)
        return int(pruned)

    async def probe(self) -> list[Finding]:
        """What can be said about the server and its settings."""
        return [await self._call.finding(), *await doctor.probe(self._database)]

    # -- life -----------------------------------------------------------------------------------------------

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings the schema up to this version."""
        return await self._call.migrate(dry_run=dry_run)

    async def close(self) -> None:
        """Finishes calls under way and ends connections."""
        await self._call.finish()
        await self._completions.close()
        await self._database.close()

    # -- inside ---------------------------------------------------------------------------------------------

    def _completion(self, task_id: str, token: str, rest_ms: int) -> PostgresCompletion:
        """A transaction whose commit is also the ack of this claim; `rest_ms` may pass between two statements."""
        return PostgresCompletion(self._completions, known_id(task_id), token, rest_ms)

    async def _rows_of(self, task_ids: Sequence[str]) -> list[tuple[Any, ...]]:
        known = [task_id for task_id in task_ids if known_id(task_id) == task_id]
        return await self._call("get", uuids(known)) if known else []


def _position(cursor: str | None) -> str | None:
    try:
        return None if cursor is None else check_task_id(cursor)
    except UnknownTask:
        raise bad_cursor(str(cursor)) from None
