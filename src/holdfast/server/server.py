"""The server: a store, its guard, and the requests that wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.task import Claimed, Task
from holdfast.server.auth import Denied, Scope
from holdfast.server.checks import is_task_id
from holdfast.server.rendering import each_task
from holdfast.stores.contract import WorkerOrders, WorkerRecord
from holdfast.stores.remote import problems

if TYPE_CHECKING:
    from holdfast.server.routing import Call

from holdfast.clock import Clock, SystemClock
from holdfast.core import payload
from holdfast.core.ids import IdSource
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.errors import StoreUnavailable
from holdfast.maintenance.service import Maintenance
from holdfast.observe.server import ServerMetrics
from holdfast.server.auth import Guard
from holdfast.server.budgets import Room
from holdfast.server.edge import where
from holdfast.server.events import CachedRead, Feed, SharedReads
from holdfast.server.polls import Polls, Results
from holdfast.server.waiters import Waiters
from holdfast.stores import documents
from holdfast.stores.contract import Placement, Store
from holdfast.stores.remote.limits import (
    LONGEST_WAIT_MS,
    MAX_ANSWERS_BYTES,
    MAX_BATCH_BYTES,
    MAX_BODIES_BYTES,
    MAX_BODY_BYTES,
)

log = logging.getLogger("holdfast.server")

_MAP_SECONDS: Final = 1.0
#: Live workers of one token.
MAX_WORKERS: Final = 1_000
#: The names of their task types, all together.
MAX_TYPES_BYTES: Final = 8 * 1024 * 1024
#: Tasks that are settled where they were reserved are among the last that were handed out.
_MOST: Final = 50_000


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a server."""

    #: Whether it runs maintenance, as a worker does.
    maintenance: bool = True
    #: The policy of tasks that are enqueued over HTTP without one.
    policy: RunPolicy = DEFAULT_POLICY
    max_body_bytes: int = MAX_BODY_BYTES
    max_batch_bytes: int = MAX_BATCH_BYTES
    #: Of all requests together.
    max_bodies_bytes: int = MAX_BODIES_BYTES
    max_answers_bytes: int = MAX_ANSWERS_BYTES
    #: Arguments and results.
    max_payload_bytes: int = payload.MAX_BYTES
    longest_wait_ms: int = LONGEST_WAIT_MS
    #: Accepted Host headers besides loopback names; none: any, unless it listens on a loopback address.
    names: tuple[str, ...] = ()


class Server:
    """What the routes share; opened and closed with its ASGI app."""

    def __init__(
        self, store: Store, guard: Guard, settings: ServerSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        self.guard = guard
        self.settings = settings or ServerSettings()
        self.clock = clock or SystemClock()
        self.metrics = ServerMetrics(store, self.clock)
        self.store = store = self.metrics.store
        self.ids = IdSource(self.clock.now_ms, os.urandom)
        self.body_room = Room(self.settings.max_bodies_bytes)
        self.answer_room = Room(self.settings.max_answers_bytes)
        self.reads = SharedReads(store)
        self.announcements = Announcements(self.reads, self.clock)
        self.waiters = Waiters(store)
        self.polls = Polls(store, self.waiters)
        self.results = Results(store)
        self.feed = Feed(self.reads)
        self.task_queues = TaskQueues(store)
        self.leaving = False
        self._placement: Placement | None = None
        #: Also tells whether the store answers.
        self._map = CachedRead(lambda: documents.partition_map(store), _MAP_SECONDS)
        #: Its name as a leader of maintenance.
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Mapping[str, object]]:
        """Serves while the block runs: the lifespan of an ASGI app."""
        await self._prepare()
        maintenance = asyncio.create_task(self._maintain()) if self.settings.maintenance else None
        try:
            yield {}
        finally:
            self.leave()
            if maintenance is not None:
                maintenance.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await maintenance
            await self.waiters.close()
            await self.polls.close()
            await self.results.close()
            await self.feed.close()
            await self.reads.end()
            await self._map.close()
            await self.metrics.close()
            await self.store.close()

    def leave(self) -> None:
        """Ends all waits: polls with an empty list, event streams with their end."""
        self.leaving = True
        self.waiters.release_all()
        self.results.release_all()
        self.feed.release_all()

    async def placement(self) -> Placement:
        """Where new tasks go."""
        if self._placement is None:
            self._placement = await self.store.placement()
        return self._placement

    async def partitions(self) -> Sequence[Store]:
        """The partitions of the store."""
        return await self.store.partitions()

    async def reach(self, queue: str) -> Collection[int]:
        """The partitions that may have tasks of this queue, by a map that is a second old at most."""
        return (await self._map.get()).reach(queue)

    async def check_ready(self) -> None:
        """Raises if this server is not ready; the store is asked once a second at most."""
        if self.leaving:
            raise StoreUnavailable("the server is shutting down")
        await self._map.get()

    async def _prepare(self) -> None:
        try:
            await self.store.migrate()
        except StoreUnavailable as error:
            log.warning("the store does not answer; requests are refused until it does: %s", error)

    async def _maintain(self) -> None:
        while True:
            try:
                await Maintenance(self.store, self.name, random_unit=random.random).run()
            except Exception as error:  # noqa: BLE001  (without maintenance, tasks would be left behind)
                log.error("maintenance failed and is started again: %s", where(error))
                await asyncio.sleep(1)


# -- workers that announce themselves over HTTP --------------------------------------------------------------------


class _Known(NamedTuple):
    """A worker that was announced here."""

    until_ms: int  # monotonic; it is silent afterwards
    types_bytes: int


class Announcements:
    """The workers of each token that were announced at this server."""

    def __init__(self, reads: Store, clock: Clock) -> None:
        self._reads = reads
        self._clock = clock
        self._of_token: dict[str, dict[str, _Known]] = {}

    async def announce(self, call: Call, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that the worker is alive, or with a time to live of 0 that it has ended; returns its orders."""
        known = self._of_token.setdefault(call.caller.name, {})
        if worker.worker_id not in known:
            await self._demand_own(call, worker.worker_id)
        before = known.pop(worker.worker_id, None)
        if ttl_ms:
            try:
                await self._make_room(call, known, worker)
            except Denied:
                if before is not None:
                    known[worker.worker_id] = before
                raise
            known[worker.worker_id] = _Known(self._clock.monotonic_ms() + ttl_ms, _types_bytes(worker))
        return await call.store.announce(worker, ttl_ms)

    async def _demand_own(self, call: Call, worker_id: str) -> None:
        """Refuses the id of a live worker that serves a foreign queue; that of one that has died is free again."""
        workers = await self._reads.workers()
        found = [record for record in workers if record.worker_id == worker_id and record.alive]
        for queue in (queue for record in found for queue in record.queues):
            if not call.caller.may(Scope.WORK, queue):
                raise Denied(
                    problems.FORBIDDEN.problem(f"worker {worker_id!r:.80} is another token's; take another id")
                )

    async def _make_room(self, call: Call, known: dict[str, _Known], worker: WorkerRecord) -> None:
        """Removes silent workers of the token, the oldest first, until this one fits."""
        size = _types_bytes(worker) + sum(each.types_bytes for each in known.values())
        while len(known) >= MAX_WORKERS or size > MAX_TYPES_BYTES:
            worker_id, oldest = min(known.items(), key=lambda each: each[1].until_ms)
            if oldest.until_ms > self._clock.monotonic_ms():
                most = f"this token has {len(known):,} workers on the list, which is all that there is room for"
                raise Denied(problems.TOO_MANY_REQUESTS.problem(most))
            del known[worker_id]
            size -= oldest.types_bytes
            await call.store.announce(replace(worker, worker_id=worker_id), 0)


def _types_bytes(worker: WorkerRecord) -> int:
    return sum(map(len, worker.types))


# -- queues of tasks -----------------------------------------------------------------------------------------------


class TaskQueues:
    """A cache of the queues of tasks, so that most settlements need no read of their tasks."""

    def __init__(self, store: Store, most: int = _MOST) -> None:
        self._store = store
        self._most = most
        self._known: dict[str, str] = {}

    def learn(self, tasks: Iterable[Claimed | Task | None]) -> None:
        """Remembers where these tasks are."""
        self._known.update((task.task_id, task.queue) for task in tasks if task is not None)
        if len(self._known) > self._most:
            for task_id in list(self._known)[: self._most // 2]:
                del self._known[task_id]

    async def of(self, task_ids: Collection[str]) -> Mapping[str, str]:
        """The queues of these tasks; unknown tasks are left out."""
        # Before the store is asked: meanwhile others may push them out.
        known = {task_id: self._known[task_id] for task_id in task_ids if task_id in self._known}
        asked = [task_id for task_id in dict.fromkeys(task_ids) if task_id not in known and is_task_id(task_id)]
        async for task in each_task(self._store, asked):
            if task is not None:
                known[task.task_id] = task.queue
                self.learn([task])
        return known
