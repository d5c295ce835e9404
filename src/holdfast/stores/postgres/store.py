"""The PostgreSQL store: the contract, each method one function of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.core.ids import check_task_id
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import FINAL_STATES, Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.errors import BadOption, StaleMap, UnknownTask
from holdfast.stores.contract import (
    Discard,
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
from holdfast.stores.postgres import probing, reading
from holdfast.stores.postgres.arrays import uuids
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.completing import Completion, Completions
from holdfast.stores.postgres.documents import Documents
from holdfast.stores.postgres.exchanging import Exchanges
from holdfast.stores.postgres.scheduling import Schedules
from holdfast.stores.postgres.sending import hold_columns, known_id, plain_text, task_columns
from holdfast.stores.postgres.within import PostgresWithin

if TYPE_CHECKING:
    from holdfast.stores.postgres.database import Database

_SILENT_WORKER_MS: Final = 86_400_000
_MAX_PAGE: Final = 1_000
#: Floors and tally are put in order about so often, by the owner of the upkeep.
_TIDY_MS: Final = 1_000
_map_decoder = msgspec.json.Decoder(PartitionMap)


class PostgresStore(Documents):
    """One partition in one schema of a PostgreSQL database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self.url = database.url
        self._database = database
        self._call = Calls(database, clock)
        self._exchanges = Exchanges(self._call, database)
        self._schedules = Schedules(self._call, database)
        self._completions = Completions(database.settings, self._call.now)
        self._monotonic_ms = SystemClock().monotonic_ms
        self._tidy_at_ms = 0
        #: Tasks in transactions of others: no part of the contract, since only a database can do that.
        self.within = PostgresWithin(database, self._call, self._circumstances)

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records tasks; as safe as the durability level says when it returns."""
        if not tasks:
            return []
        rows = await self._call("enqueue", self._call.now(), self.map_version, *task_columns(tasks), safe=True)
        answers, bells = reading.recorded(self.url, tasks, rows)
        self._database.ring(bells)
        return answers

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one call."""
        return await self._exchanges.reserve(request, settle, self.map_version)

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Renews leases and records progress."""
        if not holds:
            return []
        rows = await self._call("extend", self._call.now(), lease_ms, *hold_columns(holds))
        return [Extension(held, cancel_requested, reason) for held, cancel_requested, reason in rows]

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        return await self._exchanges.apply(changes) if changes else []

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Keeps a value under a key; as safe as the durability level says when it returns."""
        claim = (None, None) if hold is None else (UUID(known_id(hold.task_id)), plain_text(hold.token))
        [row] = await self._call("keep", self._call.now(), key, value, ttl_ms, *claim, safe=True)
        return Kept(*row)

    def completion(self, task_id: str, token: str, rest_ms: int) -> Completion:
        """A transaction whose commit is also the ack of this claim; it may rest so long between two statements."""
        return Completion(self._completions, known_id(task_id), token, rest_ms)

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        now_ms = self._monotonic_ms()
        tidies = now_ms >= self._tidy_at_ms
        [(current, count, next_due_in_ms, bells)] = await self._call("promote", self._call.now(), epoch, limit, tidies)
        reading.check_epoch(epoch, current)
        if tidies:
            self._tidy_at_ms = now_ms + _TIDY_MS
        self._database.ring(bells or ())
        return Promoted(count, next_due_in_ms)

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out."""
        return [reading.lapsed(row) for row in await self._call("expired", self._call.now(), limit)]

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Tasks that should have begun by now."""
        return [task_id for (task_id,) in await self._call("overdue", self._call.now(), limit)]

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until a bell is rung."""
        await self._call.prepare()
        return await self._database.wait(bells, timeout_ms)

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        found = {row[0]: reading.task(row) for row in await self._rows_of(task_ids)}
        return [found.get(task_id) for task_id in task_ids]

    async def kept(self, key: str) -> bytes | None:
        """What is kept under a key."""
        rows = await self._call("get_kept", self._call.now(), key)
        return rows[0][0] if rows else None

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first: in the order of their ids."""
        limit = max(1, min(query.limit, _MAX_PAGE))
        rows = await self._call(
            "find",
            None if query.states is None else [state.value for state in query.states],
            query.queue,
            query.type,
            query.worker_id,
            query.error_type,
            _position(query.cursor),
            limit + 1,
        )
        ids = [task_id for (task_id,) in rows[:limit]]
        tasks = {row[0]: reading.task(row, with_history=False) for row in await self._rows_of(ids)}
        # One that moved on meanwhile is shown as it is now; one that was deleted is left out.
        page = [tasks[task_id] for task_id in ids if task_id in tasks]
        return Page(page, ids[-1] if len(rows) > limit else None)

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return reading.counts(await self._call("depths", self._call.now()))

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return [reading.worker(row) for row in await self._call("all_workers", self._call.now())]

    async def discards(self, limit: int = 100) -> list[Discard]:
        """Records of discarded tasks."""
        return [reading.discard(row) for row in await self._call("all_discards", limit)]

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives, and gives its orders."""
        record = msgspec.json.encode(worker)
        return reading.orders(await self._call("put_worker", self._call.now(), worker.worker_id, record, ttl_ms))

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Leaves orders for a worker."""
        [(found,)] = await self._call("order_worker", plain_text(worker_id), msgspec.json.encode(orders), safe=True)
        return bool(found)

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Takes, keeps or lets go a duty."""
        [row] = await self._call("hold_duty", self._call.now(), name, owner, ttl_ms, safe=True)
        return Duty(name, *row)

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes a queue."""
        await self._call("pause", queue, paused, safe=True)
        if not paused:
            self._database.ring([queue])

    async def set_step(self, queue: str, step_ms: int) -> None:
        """What a level of priority is worth in a queue."""
        await self._call("set_step", queue, step_ms, safe=True)

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        states = sorted(FINAL_STATES)
        [(current, pruned)] = await self._call(
            "prune",
            self._call.now(),
            epoch,
            [state.value for state in states],
            [retention.age_ms(state) for state in states],
            retention.keep,
            retention.discards_ms,
            _SILENT_WORKER_MS,
            limit,
        )
        reading.check_epoch(epoch, current)
        return int(pruned)

    async def probe(self) -> list[Finding]:
        """What can be said about the server and its settings."""
        return [await self._call.finding(), *await probing.probe(self._database)]

    # -- schedules ------------------------------------------------------------------------------------------

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Schedules by their next tick."""
        return await self._schedules.find(due_within_ms, limit)

    async def schedule(self, name: str) -> Schedule | None:
        """One schedule."""
        return await self._schedules.get(name)

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Replaces a schedule and records the tasks of its ticks; as safe as the durability level says."""
        return await self._schedules.put(name, new, expected, tasks, epoch=epoch, map_version=self.map_version)

    # -- partitions -----------------------------------------------------------------------------------------

    async def partition_map(self) -> PartitionMap:
        """The partition map that this partition keeps."""
        rows = await self._call("get_map")
        return _map_decoder.decode(rows[0][0]) if rows else PartitionMap()

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Keeps a new partition map."""
        current = await self.partition_map()
        if new == current:
            return current
        if new.follows(current):
            [(done,)] = await self._call("put_map", current.version, new.version, msgspec.json.encode(new), safe=True)
            # A repeat of a call whose reply was lost finds its own map there.
            if done or await self.partition_map() == new:
                return new
        raise StaleMap(f"version {new.version} of the partition map does not follow version {current.version}")

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

    def _circumstances(self) -> dict[str, Any]:
        return {"now": self._call.now(), "map_version": self.map_version}

    async def _rows_of(self, task_ids: Sequence[str]) -> list[tuple[Any, ...]]:
        known = [task_id for task_id in task_ids if known_id(task_id) == task_id]
        return await self._call("get", uuids(known)) if known else []


def _position(cursor: str | None) -> str | None:
    try:
        return None if cursor is None else check_task_id(cursor)
    except UnknownTask:
        raise BadOption(f"cursor {str(cursor)[:40]!r} is not one that a page ended with") from None
