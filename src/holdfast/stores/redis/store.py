"""The Redis store: the contract, each method one script (or a few, where a batch is larger than a script may be)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import FINAL_STATES, Extension, Hold, Task
from holdfast.errors import DurabilityUnknown
from holdfast.stores.contract import (
    MAX_BATCH,
    MAX_PAGE,
    SILENT_WORKER_MS,
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
from holdfast.stores.decode import number_in
from holdfast.stores.documents import DISCARD, ORDERS, QUEUE, discard_of, orders_of
from holdfast.stores.redis import arguments, doctor, replies
from holdfast.stores.redis.connection import Word
from holdfast.stores.redis.enqueue import MAX_TASKS, EnqueuePartition, chunks, unless_stale_epoch
from holdfast.stores.redis.keys import wakeup_key

#: A worker that has been silent for this long after its time is taken off the list.
#: Tasks that one `find` looks at; its page ends there, with a cursor.
_MAX_LOOKED_AT: Final = 10_000
_FINAL_STATES: Final = tuple(sorted(state.value for state in FINAL_STATES))
#: What an operator wants of queues and workers takes effect at once, whether replicas have it or not.
_UNCONFIRMED_KINDS: Final = frozenset({QUEUE, ORDERS})


class RedisStore(EnqueuePartition):
    """One partition on a Redis or Valkey server."""

    # -- the path of a task ---------------------------------------------------------------------------------

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one script."""
        *early, last = chunks(settle) or [()]
        settled = [verdict for chunk in early for verdict in await self.apply(chunk)]
        packed = (arguments.request(request), *arguments.changes(last))
        reply = await self._call("reserve", request.map_version, *packed, safe=request.max_tasks > 0)
        verdicts, tasks, cut = self._unless_stale(reply)
        settled += [replies.verdict(row) for row in verdicts]
        claimed, unreadable = replies.claimed(tasks)
        if unreadable:
            # None of the others has to wait for them, and none of them comes again.
            await self.apply(unreadable)
        return Reserved(claimed, settled, bool(cut))

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Renews leases and records progress, or only looks."""
        answers: list[Extension] = []
        for chunk in chunks(holds):
            replies = await self._call("extend", lease_ms, int(check_only), *arguments.holds(chunk))
            answers += [Extension(bool(held), bool(cancel), reason.decode()) for held, cancel, reason in replies]
        return answers

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        verdicts: list[Verdict] = []
        for chunk in chunks(changes):
            verdicts += [replies.verdict(row) for row in await self._call("apply", *arguments.changes(chunk))]
        return verdicts

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until notified."""
        return await self._link.pop([wakeup_key(self._base, name) for name in wakeups], timeout_ms)

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history."""
        found: list[Task | None] = []
        while len(found) < len(task_ids):
            wanted = task_ids[len(found) : len(found) + MAX_TASKS]
            lowest = self._window.lowest
            number, *rows = await self._call("get", 1, *wanted)
            if await self._restore(lowest, int(number)):
                _, *rows = await self._call("get", 1, *wanted)
            # Large tasks come fewer at a time.
            found += [replies.task(task_id, row) for task_id, row in zip(wanted, rows, strict=False)]
        return found

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first; walks in short stretches, and ends the page when it has seen many tasks."""
        limit = max(1, min(query.limit, MAX_PAGE))
        packed = arguments.query(query)
        found: dict[str, str] = {}  # the numbers of arrival by id
        before, looked_at = "" if query.cursor is None else str(number_in(query.cursor)), 0
        while True:
            go_on, looked, *rows = await self._call("find", limit - len(found), before, packed)
            found |= {task_id.decode(): number.decode() for task_id, number in rows}
            before, looked_at = go_on.decode(), looked_at + looked
            if not before or len(found) >= limit or looked_at >= _MAX_LOOKED_AT:
                break
        tasks = await self._without_history(list(found))
        return Page(tasks, before or None, [found[task.task_id] for task in tasks])

    async def _without_history(self, task_ids: Sequence[str]) -> list[Task]:
        rows: list[Any] = []
        while len(rows) < len(task_ids):
            _, *more = await self._call("get", 0, *task_ids[len(rows) : len(rows) + MAX_TASKS])
            rows += more
        found = zip(task_ids, rows, strict=True)
        tasks = [replies.task(task_id, row, with_history=False) for task_id, row in found]
        return [task for task in tasks if task is not None]

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return replies.counts(await self._call("counts"))

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
        """Documents of a kind: a page, those of these names, or those that are due."""
        limit = max(1, min(limit, MAX_BATCH))
        if names is not None:
            return await self._documents_named(kind, names, cursor, limit)
        place: tuple[Word, ...] = ("first",)
        if due_within_ms is not None:
            place = ("due", due_within_ms, 0)
        elif cursor is not None:
            place = ("after", str(number_in(cursor)) if kind == DISCARD else cursor)
        while True:
            now_ms, more, last, *rows = await self._call("documents", kind, limit, *place)
            if rows or not more:
                break
            # All that the script has looked at have expired.
            place = ("after", last) if due_within_ms is None else ("due", due_within_ms, last)
        go_on = last.decode() if more and due_within_ms is None else None
        return DocumentPage(replies.documents(kind, rows), int(now_ms), go_on)

    async def _documents_named(self, kind: str, names: Sequence[str], cursor: str | None, limit: int) -> DocumentPage:
        wanted = sorted({name for name in names if cursor is None or name > cursor})
        asked = wanted[:limit]
        now_ms, more, last, *rows = await self._call("documents", kind, limit, "names", *asked)
        found = replies.documents(kind, rows)
        if kind == DISCARD:
            found.sort(key=lambda document: -discard_of(document).discarded_at_ms)
        rest = asked[-1] if len(wanted) > limit else None
        return DocumentPage(found, int(now_ms), last.decode() if more else rest)

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Writes a document, with its tasks, in one script; as safe as the durability level says when it returns."""
        self._map_version = max(self._map_version, write.map_version)
        lowest = self._window.lowest
        name, safe = ("put_tasks", True) if write.tasks else ("put", write.kind not in _UNCONFIRMED_KINDS)
        try:
            reply = await self._call(name, *arguments.write(write), safe=safe)
        except DurabilityUnknown as error:
            raise DurabilityUnknown(f"{write.kind} {write.name!r}: {error}") from error
        applied, reason, text, number = unless_stale_epoch(self._unless_stale(reply), write.epoch)
        if applied and write.tasks:
            await self._restore(lowest, int(number))
            self._window.remember(write.tasks, int(number))
        document = replies.document(write.kind, write.name, text) if text else None
        return DocumentResult(bool(applied), document, reason.decode())

    # -- workers and leadership -----------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives; gives its orders."""
        text = await self._call("announce", *arguments.worker(worker), ttl_ms)
        return orders_of(replies.document(ORDERS, worker.worker_id, text).value if text else None)

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return replies.workers(await self._call("workers"))

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Takes, renews or lets go a leadership, or only looks at it."""
        reply = await self._call("lead", name, owner or "", ttl_ms, safe=owner is not None)
        leader, epoch, held, expires_in_ms = reply
        return Leadership(name, leader.decode(), epoch, bool(held), expires_in_ms)

    # -- maintenance of one partition -----------------------------------------------------------------------

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        promoted = 0
        while True:
            wanted = min(MAX_TASKS, limit - promoted)
            count, next_due_in_ms = unless_stale_epoch(await self._call("promote", epoch, wanted), epoch)
            promoted += count
            if count < wanted or promoted >= limit:
                return Promoted(promoted, None if next_due_in_ms < 0 else next_due_in_ms)

    async def expired(self, limit: int = 1_000) -> Expired:
        """Claims that have expired and tasks not started in time; those that the script passed over make room."""
        while True:
            more, claims, unstarted = await self._call("expired", limit)
            if not more:
                found = [replies.expired_claim(row) for row in claims]
                return Expired(found, [task_id.decode() for task_id in unstarted])

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes finished tasks whose time is over, and expired documents."""
        ages = (retention.discards_ms, SILENT_WORKER_MS, retention.nearly_full_ms)
        pruned = 0
        while True:
            wanted = min(MAX_TASKS, limit - pruned)
            reply = await self._call("prune", epoch, wanted, retention.keep, *ages, *_FINAL_STATES)
            count: int = unless_stale_epoch(reply, epoch)[0]
            pruned += count
            if count < wanted or pruned >= limit:
                return pruned

    # -- life -----------------------------------------------------------------------------------------------

    async def probe(self) -> list[Finding]:
        """What can be said about the server and its settings."""
        return await doctor.probe(self._link)

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Nothing to do: keys are made when they are needed."""
        del dry_run
        await self._call("counts")
        return []

    async def close(self) -> None:
        """Ends connections."""
        await self._link.close()
