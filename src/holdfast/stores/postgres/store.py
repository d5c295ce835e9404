"""The PostgreSQL store: the contract, each method one function of the schema."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.core.ids import check_task_id
from holdfast.core.lifecycle import Change, Event, Verdict, target
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import FINAL_STATES, Claimed, Enqueued, Extension, Hold, Lapsed, NewTask, State, Task
from holdfast.errors import BadOption, StaleEpoch, StaleMap, UnknownTask
from holdfast.stores.contract import (
    Discard,
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
    WorkerRecord,
)
from holdfast.stores.postgres import probing, reading
from holdfast.stores.postgres.arrays import uuids
from holdfast.stores.postgres.completing import Completion, Completions
from holdfast.stores.postgres.failures import NotMigrated
from holdfast.stores.postgres.floors import Floor, Floors
from holdfast.stores.postgres.migrating import Migrator
from holdfast.stores.postgres.sending import Sent, change_columns, hold_columns, known_id, plain_text, task_columns
from holdfast.stores.postgres.within import PostgresWithin
from holdfast.stores.single import SinglePartition, stale_map

if TYPE_CHECKING:
    from holdfast.stores.postgres.database import Database

_ACKED: Final = Verdict(True, state=target(State.CLAIMED, Event.ACK))
_SILENT_WORKER_MS: Final = 86_400_000
_MAX_PAGE: Final = 1_000
#: Floors and tally are put in order about so often, by the owner of the upkeep.
_TIDY_MS: Final = 1_000
_MIGRATION_SECONDS: Final = 60.0
_map_decoder = msgspec.json.Decoder(PartitionMap)


class PostgresStore(SinglePartition):
    """One partition in one schema of a PostgreSQL database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self.url = database.url
        self._database = database
        self._migrator = Migrator(database.settings.schema, database.url)
        self._migrated = False
        self._steps: list[str] = []
        self._under_way = 0
        self._monotonic_ms = SystemClock().monotonic_ms
        self._floors = Floors(self._monotonic_ms)
        self._completions = Completions(database.settings, self._now)
        self._tidy_at_ms = 0
        self._lanes: dict[int, tuple[str, str, int]] = {}
        #: Only the stepped clock of a test is sent along; otherwise the server's own decides.
        self._clock = None if isinstance(clock, SystemClock) else clock
        #: Tasks in transactions of others: no part of the contract, since only a database can do that.
        self.within = PostgresWithin(database, self._call, self._circumstances)

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records tasks; as safe as the durability level says when it returns."""
        if not tasks:
            return []
        rows = await self._call("enqueue", self._now(), self.map_version, *task_columns(tasks), safe=True)
        answers, bells = reading.recorded(self.url, tasks, rows)
        self._database.ring(bells)
        return answers

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one call."""
        sent = change_columns(settle)
        rows = await self._call(
            "reserve",
            self._now(),
            self.map_version,
            *sent.columns,
            request.claim_id,
            request.worker_id,
            secrets.token_hex(8) if request.fresh else None,
            [share.queue for share in request.shares],
            [share.limit for share in request.shares],
            request.max_tasks,
            request.lease_ms,
            None if request.types is None else list(request.types),
            *self._floors.columns(),
            safe=True,
        )
        return await self._reserved(request, sent, rows, len(settle))

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Renews leases and records progress."""
        if not holds:
            return []
        rows = await self._call("extend", self._now(), lease_ms, *hold_columns(holds))
        return [Extension(held, cancel_requested, reason) for held, cancel_requested, reason in rows]

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        if not changes:
            return []
        sent = change_columns(changes)
        verdicts = [_ACKED] * len(changes)
        for place, applied, repeated, reason, state, bell in await self._call(
            "apply", self._now(), *sent.columns, safe=True
        ):
            verdicts[_place(sent, place)] = reading.verdict(applied, repeated, reason, state)
            if bell is not None:
                self._database.ring([bell])
        return verdicts

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Keeps a value under a key; as safe as the durability level says when it returns."""
        claim = (None, None) if hold is None else (UUID(known_id(hold.task_id)), plain_text(hold.token))
        [row] = await self._call("keep", self._now(), key, value, ttl_ms, *claim, safe=True)
        return Kept(*row)

    def completion(self, task_id: str, token: str, rest_ms: int) -> Completion:
        """A transaction whose commit is also the ack of this claim; it may rest so long between two statements."""
        return Completion(self._completions, known_id(task_id), token, rest_ms)

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        now_ms = self._monotonic_ms()
        tidies = now_ms >= self._tidy_at_ms
        [(current, count, next_due_in_ms, bells)] = await self._call("promote", self._now(), epoch, limit, tidies)
        _check_epoch(epoch, current)
        if tidies:
            self._tidy_at_ms = now_ms + _TIDY_MS
        self._database.ring(bells or ())
        return Promoted(count, next_due_in_ms)

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out."""
        return [reading.lapsed(row) for row in await self._call("expired", self._now(), limit)]

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until a bell is rung."""
        await self._prepare()
        return await self._database.wait(bells, timeout_ms)

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        found = {row[0]: reading.task(row) for row in await self._rows_of(task_ids)}
        return [found.get(task_id) for task_id in task_ids]

    async def kept(self, key: str) -> bytes | None:
        """What is kept under a key."""
        rows = await self._call("get_kept", self._now(), key)
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
        return reading.counts(await self._call("counts", self._now()))

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return [reading.worker(row) for row in await self._call("all_workers", self._now())]

    async def discards(self, limit: int = 100) -> list[Discard]:
        """Records of discarded tasks."""
        return [reading.discard(row) for row in await self._call("all_discards", limit)]

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> None:
        """Records that a worker lives."""
        await self._call("announce", self._now(), worker.worker_id, msgspec.json.encode(worker), ttl_ms)

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Takes, keeps or lets go a duty."""
        [row] = await self._call("hold_duty", self._now(), name, owner, ttl_ms, safe=True)
        return Duty(name, *row)

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes a queue."""
        await self._call("pause", queue, paused, safe=True)
        if not paused:
            self._database.ring([queue])

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        states = sorted(FINAL_STATES)
        [(current, pruned)] = await self._call(
            "prune",
            self._now(),
            epoch,
            [state.value for state in states],
            [retention.age_ms(state) for state in states],
            retention.keep,
            retention.discards_ms,
            _SILENT_WORKER_MS,
            limit,
        )
        _check_epoch(epoch, current)
        return int(pruned)

    async def probe(self) -> list[Finding]:
        """What can be said about the server and its settings."""
        schema = await self._database.run(self._migrator.finding, safe=False)
        return [schema, *await probing.probe(self._database)]

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
        if dry_run:
            return await self._database.run(self._migrator.pending, safe=False)
        await self._prepare()
        steps, self._steps = self._steps, []
        return steps

    async def close(self) -> None:
        """Finishes calls under way and ends connections."""
        while self._under_way:  # noqa: ASYNC110  # Calls may come from other event loops, which one event cannot serve.
            await asyncio.sleep(0.005)
        await self._completions.close()
        await self._database.close()

    # -- inside ---------------------------------------------------------------------------------------------

    async def _call(self, function: str, *args: Any, safe: bool = False) -> list[tuple[Any, ...]]:
        self._under_way += 1
        try:
            if not self._migrated:
                await self._prepare()
            try:
                return await self._database.call(function, *args, safe=safe)
            except NotMigrated:
                # Dropped, or brought to a version that has no place for us: the second is told, the first is mended.
                self._migrated = False
                await self._prepare()
                return await self._database.call(function, *args, safe=safe)
        finally:
            self._under_way -= 1

    def _circumstances(self) -> dict[str, Any]:
        return {"now": self._now(), "map_version": self.map_version}

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock.now_ms()

    async def _prepare(self) -> None:
        """Migrates at the first call, so that a new database needs no set-up."""
        if not self._migrated:
            # A look needs no standby, so that people can look when there is none.
            if await self._database.run(self._migrator.pending, safe=False):
                self._steps += await self._database.run(self._migrator.migrate, seconds=_MIGRATION_SECONDS)
            self._migrated = True

    async def _reserved(self, request: Reserve, sent: Sent, rows: Sequence[Any], settled: int) -> Reserved:
        verdicts = [_ACKED] * settled
        tasks: list[Claimed] = []
        claim_id = request.claim_id
        for kind, lane, task_id, attempt, deliveries, number, created_at_ms, payload, headers, policy in rows:
            if kind == "task":
                queue, task_type, priority = self._lanes.get(lane) or await self._lane(lane)
                tasks.append(
                    Claimed(
                        task_id,
                        f"{number}.{deliveries}.{claim_id}",
                        task_type,
                        queue,
                        payload,
                        reading.headers_of(headers),
                        priority,
                        reading.policy_of(policy),
                        attempt,
                        created_at_ms,
                    )
                )
            elif kind == "verdict":
                answer = reading.verdict(deliveries >= 2, deliveries == 3, headers, policy)
                verdicts[_place(sent, attempt)] = answer
            elif kind == "floor":
                self._floors.learn(lane, Floor(deliveries, number, task_id))
            elif kind == "bell":
                self._database.ring([headers])
            else:
                raise stale_map(self.url, number)
        if len(tasks) < request.max_tasks:
            self._floors.forget()
        return Reserved(tasks, verdicts)

    async def _lane(self, lane: int) -> tuple[str, str, int]:
        """Queue, type and priority of a lane; lanes never change, so all are fetched when one is new."""
        self._lanes.update({row[0]: row[1:] for row in await self._call("lane_names")})
        return self._lanes[lane]

    async def _rows_of(self, task_ids: Sequence[str]) -> list[tuple[Any, ...]]:
        known = [task_id for task_id in task_ids if known_id(task_id) == task_id]
        return await self._call("get", uuids(known)) if known else []


def _place(sent: Sent, place: int) -> int:
    """Where the caller has the change of a verdict: acks are numbered among themselves, from -1 down."""
    return sent.ack_places[-place - 1] if place < 0 else place


def _check_epoch(given: int, current: int) -> None:
    if given != current:
        raise StaleEpoch(f"upkeep belongs to epoch {current} now, this call is of epoch {given}")


def _position(cursor: str | None) -> str | None:
    try:
        return None if cursor is None else check_task_id(cursor)
    except UnknownTask:
        raise BadOption(f"cursor {str(cursor)[:40]!r} is not one that a page ended with") from None
