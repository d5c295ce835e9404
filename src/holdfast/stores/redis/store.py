"""The Redis store: the contract, each method one script (or a few, where a batch is larger than a script may be)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.task import FINAL_STATES, Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.errors import BadOption, DurabilityUnknown, StaleEpoch, StaleMap, StoreError
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
from holdfast.stores.redis import probing, reading
from holdfast.stores.redis.keys import bell_key, partition_key
from holdfast.stores.redis.replay import ReplayWindow
from holdfast.stores.redis.scripts import script
from holdfast.stores.single import SinglePartition, stale_map

if TYPE_CHECKING:
    from holdfast.stores.redis.link import Link

_log = logging.getLogger(__name__)
#: One script handles so many tasks at most: a longer one would hold up everybody else. Only a reserve must stay whole,
#: since a repeat with its claim_id has to find all of it; workers ask for as many tasks as they have free slots.
MAX_TASKS: Final = 200
_SILENT_WORKER_MS = 86_400_000
_MAX_PAGE = 1_000
_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_map_decoder = msgspec.json.Decoder(PartitionMap)
_NO_CHANGES = _pack([])
_STALE_MAP = b"stale_map"


class RedisStore(SinglePartition):
    """One partition on a Redis or Valkey server."""

    def __init__(self, link: Link, *, prefix: str, clock: Clock, partition: int = 0) -> None:
        self.url = link.url
        self._link = link
        self.partition = partition
        self._base = partition_key(prefix, partition)
        self._window = ReplayWindow(SystemClock().monotonic_ms)
        #: Only the stepped clock of a test is sent along; otherwise the server's own decides.
        self._clock = None if isinstance(clock, SystemClock) else clock

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records tasks; as safe as the durability level says when it returns."""
        if not tasks:
            return []
        floor = self._window.floor
        number, answers = await self._enqueue(tasks)
        await self._mend(floor, number)
        self._window.remember(tasks, number)
        return answers

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """Records a few tasks if the server simply says so; a server that has lost its tail is left to `enqueue`."""
        if len(tasks) > MAX_TASKS or self._window.lost is not None:
            return None
        floor = self._window.floor
        reply = self._link.call_now(script("enqueue"), self._base, self._enqueue_args(tasks))
        if reply is None or reply[0] == _STALE_MAP or int(reply[0]) < floor:
            return None
        number, *rows = reply
        self._window.remember(tasks, int(number))
        return [_enqueued(task, row) for task, row in zip(tasks, rows, strict=True)]

    async def _enqueue(self, tasks: Sequence[NewTask]) -> tuple[int, list[Enqueued]]:
        calls = [self._enqueue_args(chunk) for chunk in _chunks(tasks)]
        try:
            replies = await self._link.calls(script("enqueue"), self._base, calls, safe=True)
        except DurabilityUnknown as error:
            raise DurabilityUnknown(f"{_named(tasks)}: {error}") from error
        rows = [row for reply in replies for row in self._unless_stale(reply)[1:]]
        return int(replies[-1][0]), [_enqueued(task, row) for task, row in zip(tasks, rows, strict=True)]

    def _enqueue_args(self, tasks: Sequence[NewTask]) -> list[bytes | str | int]:
        """The tasks as the script takes them, then their payloads."""
        packed = _pack([_envelope(task) for task in tasks])
        return [self._now(), self.map_version, packed, *[task.payload for task in tasks]]

    async def _mend(self, floor: int, number: int) -> bool:
        """If the server has lost its tail, records again what this process knows to be acknowledged; True if it did."""
        lost = self._window.notice(floor, number)
        if lost:
            _log.error("%s lost what it had acknowledged; sending the last %d tasks again", self.url, lost)
        mended = False
        while (batch := self._window.lost) is not None:
            try:
                again, _ = await self._enqueue(batch)
            except StoreError as error:
                # Whose call this is has nothing to do with it; the batch stays, and the next call tries again.
                _log.warning("%s: sending again what was lost: %s", self.url, error)
                break
            self._window.found(batch, again)
            mended = True
        return mended

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one script."""
        *early, last = _chunks(settle) or [()]
        settled = [verdict for chunk in early for verdict in await self.apply(chunk)]
        types = None if request.types is None else sorted(request.types)
        packed = _pack(
            (
                request.claim_id,
                request.worker_id,
                list(request.shares),
                request.max_tasks,
                request.lease_ms,
                types,
                secrets.token_hex(8) if request.fresh else None,
            )
        )
        reply = await self._call("reserve", self.map_version, packed, *_changes(last), safe=request.max_tasks > 0)
        verdicts, tasks = self._unless_stale(reply)
        settled += [reading.verdict(row) for row in verdicts]
        return Reserved([reading.claimed(row) for row in tasks], settled)

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Renews leases and records progress."""
        answers: list[Extension] = []
        for chunk in _chunks(holds):
            rows = [(hold.task_id, hold.token, hold.progress is not None) for hold in chunk]
            progress = [hold.progress for hold in chunk if hold.progress is not None]
            replies = await self._call("extend", lease_ms, _pack(rows), *progress)
            answers += [Extension(bool(held), bool(cancel), reason.decode()) for held, cancel, reason in replies]
        return answers

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        verdicts: list[Verdict] = []
        for chunk in _chunks(changes):
            verdicts += [reading.verdict(row) for row in await self._call("apply", *_changes(chunk))]
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
            count, next_due_in_ms = _current(await self._call("promote", epoch, wanted), epoch)
            promoted += count
            if count < wanted or promoted >= limit:
                return Promoted(promoted, None if next_due_in_ms < 0 else next_due_in_ms)

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out."""
        return [reading.lapsed(row) for row in await self._call("expired", limit)]

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until a bell is rung."""
        return await self._link.pop([bell_key(self._base, name) for name in bells], timeout_ms)

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        found: list[Task | None] = []
        for chunk in _chunks(task_ids):
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
        states = None if query.states is None else sorted(state.value for state in query.states)
        packed = _pack((states, query.queue, query.type, query.worker_id, query.error_type))
        found: list[str] = []
        before = _position(query.cursor)
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

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> None:
        """Records that a worker lives."""
        await self._call("announce", worker.worker_id, _json(worker), ttl_ms)

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Takes, keeps or lets go a duty."""
        holder, epoch, held, expires_in_ms = await self._call("hold_duty", name, owner, ttl_ms, safe=True)
        return Duty(name, holder.decode(), epoch, bool(held), expires_in_ms)

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes a queue."""
        await self._call("pause", queue, int(paused))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks past their retention."""
        ages = _pack([
            (state.value, retention.age_ms(state), retention.age_when_nearly_full_ms(state))
            for state in sorted(FINAL_STATES)
        ])  # fmt: skip
        pruned = 0
        while True:
            wanted = min(MAX_TASKS, limit - pruned)
            reply = await self._call(
                "prune", epoch, wanted, retention.keep, retention.discards_ms, _SILENT_WORKER_MS, ages
            )
            (count, *_) = _current(reply, epoch)
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
        if new == current:
            return current
        if new.follows(current) and await self._call(
            "put_map", current.version, new.version, msgspec.json.encode(new), safe=True
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

    async def _call(self, name: str, *args: bytes | str | int, safe: bool = False) -> Any:
        return await self._link.call(script(name), self._base, (self._now(), *args), safe=safe)

    def _now(self) -> str:
        return "" if self._clock is None else str(self._clock.now_ms())

    def _unless_stale(self, reply: Any) -> Any:
        """The reply, if the call was not refused for being routed by an old map."""
        if reply[0] == _STALE_MAP:
            raise stale_map(self.url, reply[1])
        return reply

    async def _without_history(self, task_ids: Sequence[str]) -> list[Task]:
        replies = await asyncio.gather(*(self._call("get", *chunk) for chunk in _chunks(task_ids)))
        rows = [row for reply in replies for row in reply[1:]]
        tasks = [reading.task(task_id, row, with_history=False) for task_id, row in zip(task_ids, rows, strict=True)]
        return [task for task in tasks if task is not None]


def _chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[first : first + MAX_TASKS] for first in range(0, len(items), MAX_TASKS)]


def _named(tasks: Sequence[NewTask]) -> str:
    others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"task {tasks[0].task_id}{others}"


def _envelope(task: NewTask) -> tuple[Any, ...]:
    return (
        task.task_id,
        task.type,
        task.queue,
        task.priority,
        task.delay_ms,
        task.run_at_ms,
        task.request_id,
        _json(task.headers).decode() if task.headers else None,
        None if task.policy == DEFAULT_POLICY else _json(task.policy).decode(),
    )


def _enqueued(task: NewTask, row: Sequence[Any]) -> Enqueued:
    task_id = row[0].decode()
    if len(row) == 2:
        return Enqueued(task_id, created=bool(row[1]))
    known = {
        b"task_id": f"task_id {task.task_id}",
        b"request_id": f"request_id {task.request_id!r} in queue {task.queue!r}",
    }
    conflict = f"{known[row[2]]} already stands for another {row[3].decode()} call"
    return Enqueued(task_id, created=False, conflict=conflict)


def _changes(changes: Sequence[Change]) -> tuple[bytes, ...]:
    """The changes as the scripts take them, then their results."""
    if not changes:
        return (_NO_CHANGES,)
    results = [change.result for change in changes if change.result is not None]
    return (_pack([_change(change) for change in changes]), *results)


def _change(change: Change) -> tuple[Any, ...]:
    return (
        change.event.value,
        change.task_id,
        change.token,
        change.lapsed_only,
        change.epoch,
        change.delay_ms,
        change.outcome,
        change.error.type if change.error else None,
        _json(change.error).decode() if change.error else None,
        change.reason,
        change.result is not None,
    )


def _map_of(text: bytes) -> PartitionMap:
    return _map_decoder.decode(text) if text else PartitionMap()


def _current(reply: Sequence[int], epoch: int) -> Sequence[int]:
    if reply[0] < 0:
        raise StaleEpoch(f"upkeep belongs to epoch {reply[1]} now, this call is of epoch {epoch}")
    return reply


def _position(cursor: str | None) -> str:
    if cursor is None:
        return ""
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 18:
        raise BadOption(f"cursor {cursor[:40]!r} is not one that a page ended with")
    return cursor
