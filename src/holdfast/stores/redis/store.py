"""The Redis store: the contract, each method one script (or a few, where a batch is larger than a script may be)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import Extension, Hold, Lapsed, Task
from holdfast.errors import StaleMap
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
from holdfast.stores.redis import probing, reading, sending
from holdfast.stores.redis.calling import MAX_TASKS, chunks, current
from holdfast.stores.redis.documents import Documents
from holdfast.stores.redis.keys import bell_key
from holdfast.stores.redis.recording import Recording

_SILENT_WORKER_MS = 86_400_000
_MAX_PAGE = 1_000
_map_decoder = msgspec.json.Decoder(PartitionMap)


class RedisStore(Recording, Documents):
    """One partition on a Redis or Valkey server."""

    # -- the path of a task ---------------------------------------------------------------------------------

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one script."""
        *early, last = chunks(settle) or [()]
        settled = [verdict for chunk in early for verdict in await self.apply(chunk)]
        packed = (sending.request(request), *sending.changes(last))
        reply = await self._call("reserve", self.map_version, *packed, safe=request.max_tasks > 0)
        verdicts, tasks = self._unless_stale(reply)
        settled += [reading.verdict(row) for row in verdicts]
        return Reserved([reading.claimed(row) for row in tasks], settled)

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Renews leases and records progress."""
        answers: list[Extension] = []
        for chunk in chunks(holds):
            rows = [(hold.task_id, hold.token, hold.progress is not None) for hold in chunk]
            progress = [hold.progress for hold in chunk if hold.progress is not None]
            replies = await self._call("extend", lease_ms, sending.pack(rows), *progress)
            answers += [Extension(bool(held), bool(cancel), reason.decode()) for held, cancel, reason in replies]
        return answers

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        verdicts: list[Verdict] = []
        for chunk in chunks(changes):
            verdicts += [reading.verdict(row) for row in await self._call("apply", *sending.changes(chunk))]
        return verdicts

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Keeps a value under a key; as safe as the durability level says when it returns."""
        claim = ("", "") if hold is None else (hold.task_id, hold.token)
        reason, *found = await self._call("keep", key, value, ttl_ms, *claim, safe=True)
        return Kept(found[0] if found else None, reason.decode())

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        promoted = 0
        while True:
            wanted = min(MAX_TASKS, limit - promoted)
            count, next_due_in_ms = current(await self._call("promote", epoch, wanted), epoch)
            promoted += count
            if count < wanted or promoted >= limit:
                return Promoted(promoted, None if next_due_in_ms < 0 else next_due_in_ms)

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out."""
        return [reading.lapsed(row) for row in await self._call("expired", limit)]

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Tasks that were not begun in time; deadlines that have come to nothing are passed over."""
        while True:
            forgotten, *found = await self._call("overdue", limit)
            if not forgotten or forgotten + len(found) < limit:
                return [task_id.decode() for task_id in found]

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until a bell is rung."""
        return await self._link.pop([bell_key(self._base, name) for name in bells], timeout_ms)

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        found: list[Task | None] = []
        for chunk in chunks(task_ids):
            floor = self._window.floor
            number, *rows = await self._call("get", *chunk)
            if await self._mend(floor, int(number)):
                _, *rows = await self._call("get", *chunk)
            found += [reading.task(task_id, row) for task_id, row in zip(chunk, rows, strict=True)]
        return found

    async def kept(self, key: str) -> bytes | None:
        """What is kept under a key."""
        value: bytes | None = await self._call("kept", key)
        return value

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first; walks in stretches, so that no search holds up the server."""
        limit = max(1, min(query.limit, _MAX_PAGE))
        packed = sending.query(query)
        found: list[str] = []
        before = sending.position(query.cursor)
        while True:
            go_on, *rows = await self._call("find", limit - len(found), before, packed)
            found += [task_id.decode() for task_id, _ in rows]
            before = go_on.decode()
            if not before or len(found) >= limit:
                break
        tasks = await self._without_history(found)
        return Page(tasks, before or None)

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return reading.counts(await self._call("counts"))

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return reading.workers(await self._call("workers"))

    async def discards(self, limit: int = 100) -> list[Discard]:
        """Records of discarded tasks."""
        return [reading.discard(packed) for packed in await self._call("discards", limit)]

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Schedules by their next tick."""
        return reading.schedules(await self._call("schedules", "" if due_within_ms is None else due_within_ms, limit))

    async def schedule(self, name: str) -> Schedule | None:
        """The schedule of this name."""
        return reading.schedule(await self._call("schedule", name))

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives; gives its orders."""
        return reading.orders(await self._call("announce", worker.worker_id, sending.json(worker), ttl_ms))

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Leaves orders for a worker."""
        return bool(await self._call("order", worker_id, sending.json(orders)))

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Takes, keeps or lets go a duty."""
        holder, epoch, held, expires_in_ms = await self._call("hold_duty", name, owner, ttl_ms, safe=True)
        return Duty(name, holder.decode(), epoch, bool(held), expires_in_ms)

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes a queue."""
        await self._call("pause", queue, int(paused))

    async def set_step(self, queue: str, step_ms: int) -> None:
        """Changes what a level of priority is worth in a queue; nothing that waits there has to move."""
        await self._call("set_step", queue, step_ms)

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        ages = sending.ages(retention)
        pruned = 0
        while True:
            wanted = min(MAX_TASKS, limit - pruned)
            reply = await self._call(
                "prune", epoch, wanted, retention.keep, retention.discards_ms, _SILENT_WORKER_MS, ages
            )
            (count, *_) = current(reply, epoch)
            pruned += count
            if count < wanted or pruned >= limit:
                return pruned

    async def probe(self) -> list[Finding]:
        """What can be said about the server and its settings."""
        return await probing.probe(self._link)

    # -- partitions -----------------------------------------------------------------------------------------

    async def partition_map(self) -> PartitionMap:
        """The partition map that this partition keeps."""
        return _map_of(await self._call("get_map"))

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Keeps a new partition map."""
        current = await self.partition_map()
        if (new == current or new.follows(current)) and await self._call(
            "put_map", current.version, new.version, sending.json(new), safe=True
        ):
            return new
        raise StaleMap(f"version {new.version} of the partition map does not follow version {current.version}")

    # -- life -----------------------------------------------------------------------------------------------

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Nothing to do: keys are made when they are needed."""
        del dry_run
        await self._call("counts")
        return []

    async def close(self) -> None:
        """Ends connections."""
        await self._link.close()

    # -- inside ---------------------------------------------------------------------------------------------

    async def _without_history(self, task_ids: Sequence[str]) -> list[Task]:
        replies = await asyncio.gather(*(self._call("get", *chunk) for chunk in chunks(task_ids)))
        rows = [row for reply in replies for row in reply[1:]]
        tasks = [reading.task(task_id, row, with_history=False) for task_id, row in zip(task_ids, rows, strict=True)]
        return [task for task in tasks if task is not None]


def _map_of(text: bytes) -> PartitionMap:
    return _map_decoder.decode(text) if text else PartitionMap()
