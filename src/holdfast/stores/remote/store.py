"""The remote store: the contract, each method one call to a server."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import copy
from itertools import count
from typing import Final, TypeVar

from msgspec.structs import replace

from holdfast.clock import Clock, SystemClock
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Enqueued, Extension, Hold, NewTask, Task
from holdfast.errors import HoldfastError, NotAllowed, StaleMap, StoreError, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.capabilities import NO_CAPABILITIES, Capabilities, PartialView
from holdfast.stores.contract import (
    MAX_BATCH,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    Expired,
    Finding,
    Leadership,
    Page,
    Placement,
    Promoted,
    Query,
    QueueCounts,
    Reserve,
    Reserved,
    Retention,
    Store,
    WorkerOrders,
    WorkerRecord,
)
from holdfast.stores.remote import calls
from holdfast.stores.remote.calls import NoArguments, StoreCall
from holdfast.stores.remote.client import Client
from holdfast.stores.remote.limits import MAX_BATCH_BYTES
from holdfast.stores.remote.urls import RemoteSettings, parse_remote_url

Item = TypeVar("Item")
Q = TypeVar("Q")
A = TypeVar("A")

#: A map may be as old as this: an old one is harmless, since where a queue's tasks may be only grows.
_FRESH_MAP_MS: Final = 30_000
_LOOPBACK: Final = ("localhost", "127.", "::1")
_NOTHING: Final = NoArguments()


def open_remote(url: str) -> Store:
    """The store behind the server of this URL; nothing is connected to before the first call."""
    return RemoteStore(Client(parse_remote_url(url)))


class RemoteStore(Store):
    """The store behind a server, or with a number one partition of it."""

    def __init__(self, client: Client, *, partition: int | None = None, url: str = "") -> None:
        self.url = url or client.settings.url
        self.capabilities = Capabilities(
            enqueue_now=self._enqueue_now, in_part=self._in_part if partition is None else None
        )
        #: Of a view: what the server has left out.
        self._left_out: dict[int, StoreUnavailable] | None = None
        self._client = client
        self._place = "" if partition is None else f"?{calls.PARTITION}={partition}"
        self._placing = Placing(lambda: documents.partition_map(self))
        #: A partition is its own; for what is behind a server, that is asked.
        self._partitions: Sequence[Store] | None = None if partition is None else [self]

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Records tasks; in several calls if they are more than a server takes at once.

        All or nothing holds for each of those calls: an error says how many tasks the calls before it have recorded.
        """
        answers: list[Enqueued] = []
        for body in _bodies(tasks, map_version):
            try:
                answers += await self._enqueue(body)
            except HoldfastError as error:
                if not answers:
                    raise
                done = f"the first {len(answers):,} of {len(tasks):,} tasks are recorded"
                raise type(error)(f"{error}; {done}: send all of them again, with the same ids") from error
        return answers

    async def _enqueue(self, body: bytes) -> list[Enqueued]:
        try:
            answer = await self._client.ask(calls.ENQUEUE, body, self._place)
        except StaleMap:
            await self._placing.keep_up(refused=True)
            raise
        await self._placing.keep_up()
        return self._client.read(calls.ENQUEUE, answer)

    def _enqueue_now(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued] | None:
        """Records tasks if the server simply says so, and the map by which they were placed is not too old."""
        if self._placing.is_old:
            return None
        body = calls.ENQUEUE.write_request(calls.Enqueue(tasks=list(tasks), map_version=map_version))
        answer = None if _too_large(body, tasks) else self._client.ask_now(calls.ENQUEUE, body, self._place)
        return None if answer is None or answer.status != 200 else self._client.read(calls.ENQUEUE, answer)

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settles the last batch and claims the next in one call."""
        arguments = calls.Reserve(request=request, settle=list(settle))
        body = calls.RESERVE.write_request(arguments)
        if _too_large(body, settle):
            verdicts = await self.apply(settle)
            return replace(await self.reserve(request), verdicts=verdicts)
        answer = await self._client.ask(calls.RESERVE, body, self._place, repeat=lambda: _not_fresh(arguments))
        return self._client.read(calls.RESERVE, answer)

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Renews leases and records progress, or checks the claims."""
        body = calls.EXTEND.write_request(calls.Extend(holds=list(holds), lease_ms=lease_ms, check_only=check_only))
        if _too_large(body, holds):
            halves = [await self.extend(half, lease_ms, check_only=check_only) for half in _halves(holds)]
            return [answer for half in halves for answer in half]
        return self._client.read(calls.EXTEND, await self._client.ask(calls.EXTEND, body, self._place))

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        body = calls.APPLY.write_request(calls.Apply(changes=list(changes)))
        if _too_large(body, changes):
            first, second = _halves(changes)
            return [*await self.apply(first), *await self.apply(second)]
        return self._client.read(calls.APPLY, await self._client.ask(calls.APPLY, body, self._place))

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps in a long poll until a wake-up comes; cancelled, it takes its connection with it."""
        return await self._client.listen(list(wakeups), timeout_ms, self._place)

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with their history; in several calls if they are more than one answer has room for."""
        found: dict[str, Task | None] = {}
        left = list(dict.fromkeys(task_ids))
        while left:
            part = await self._call(calls.GET, calls.TaskIds(task_ids=left))
            if not part:
                raise StoreError(f"{self.url}: the answer to get is empty; use the same version on both sides")
            found.update(zip(left, part, strict=False))
            left = left[len(part) :]
        return [found[task_id] for task_id in task_ids]

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first."""
        return await self._call(calls.FIND, calls.Find(query=query))

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return await self._call(calls.COUNTS, _NOTHING)

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
        """Documents of a kind, as far as the token may see them."""
        asked = None if names is None else list(names)
        return await self._call(
            calls.DOCUMENTS,
            calls.Documents(kind=kind, names=asked, due_within_ms=due_within_ms, cursor=cursor, limit=limit),
        )

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Replaces, creates or removes a document, and enqueues the tasks sent with it."""
        return await self._call(calls.PUT, write)

    # -- workers and leadership -----------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that a worker lives; gives its orders."""
        return await self._call(calls.ANNOUNCE, calls.Announce(worker=worker, ttl_ms=ttl_ms))

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return await self._call(calls.WORKERS, _NOTHING)

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Takes, renews, gives up or looks at a leadership."""
        return await self._call(calls.LEAD, calls.Lead(name=name, owner=owner, ttl_ms=ttl_ms))

    # -- maintenance ----------------------------------------------------------------------------------------

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Due tasks to `ready`."""
        return await self._call(calls.PROMOTE, calls.Epoch(epoch=epoch, limit=limit))

    async def expired(self, limit: int = 1_000) -> Expired:
        """Claims whose lease has expired, and tasks not started in time."""
        return await self._call(calls.EXPIRED, calls.Limit(limit=limit))

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes what is past its retention."""
        return await self._call(calls.PRUNE, calls.Prune(epoch=epoch, retention=retention, limit=limit))

    # -- life -----------------------------------------------------------------------------------------------

    async def placement(self) -> Placement:
        """By the partition map."""
        await self._placing.learn()
        return self._placing.place

    async def partitions(self) -> Sequence[Store]:
        """The partitions behind the server, for a token that may maintain them; for any other, none."""
        if self._partitions is None:
            try:
                urls = await self._call(calls.PARTITIONS, _NOTHING)
            except NotAllowed:
                urls = []
            if len(urls) == 1:
                self._partitions = [self]
            else:
                self._partitions = [RemoteStore(self._client, partition=n, url=url) for n, url in enumerate(urls)]
        return self._partitions

    async def probe(self) -> list[Finding]:
        """What can be said about the way to the server, and what its store says of itself."""
        return [_reachable(self._client.settings), *await self._call(calls.PROBE, _NOTHING)]

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings the schema behind the server up to the server's version."""
        return await self._call(calls.MIGRATE, calls.Migrate(dry_run=dry_run))

    async def close(self) -> None:
        """Ends connections."""
        await self._client.close()

    def _in_part(self, *, until_deadline: bool = False) -> PartialView:
        """A store over the same server that asks for answers without the partitions that are away."""
        del until_deadline  # the server knows how long it waits
        view = copy(self)
        view.capabilities = NO_CAPABILITIES
        left_out: dict[int, StoreUnavailable] = {}
        view._left_out = left_out  # noqa: SLF001
        return PartialView(view, left_out)

    async def _call(self, call: StoreCall[Q, A], arguments: Q) -> A:
        if self._left_out is None:
            return await self._client.call(call, arguments, self._place)
        answer = await self._client.ask(call, call.write_request(arguments), self._place, in_part=True)
        for partition in _numbers(answer.headers.get(calls.LEFT_OUT.lower(), "")):
            self._left_out[partition] = StoreUnavailable(f"the server at {self.url} gets no answer from it")
        return self._client.read(call, answer)


class Placing:
    """Where new tasks go: by the last partition map of the store behind the server, so that their ids can carry it."""

    def __init__(self, fetch: Callable[[], Awaitable[PartitionMap]], clock: Clock | None = None) -> None:
        self._fetch = fetch
        self._clock = clock or SystemClock()
        self._map: PartitionMap | None = None
        self._fetched_at_ms = 0
        self._turns = count()

    def place(self, queue: str, request_id: str | None) -> int:
        """The partition for a new task."""
        return (self._map or PartitionMap()).partition_for(queue, request_id, next(self._turns))

    async def learn(self) -> None:
        """Fetches the map if none is known."""
        if self._map is None:
            await self._learn()

    @property
    def is_old(self) -> bool:
        """Whether the map is one that can change, and has grown old."""
        if self._map is None or len(self._map.shards) == 1:
            return False
        return self._clock.monotonic_ms() - self._fetched_at_ms > _FRESH_MAP_MS

    async def keep_up(self, *, refused: bool = False) -> None:
        """Fetches the map anew if it has grown old, or if the server refused what was made by it."""
        if self._map is not None and (refused or self.is_old):
            with contextlib.suppress(StoreError):
                await self._learn()

    async def _learn(self) -> None:
        self._fetched_at_ms = self._clock.monotonic_ms()  # before the answer: of many callers at once, one asks
        self._map = await self._fetch()


def _reachable(settings: RemoteSettings) -> Finding:
    """Whether others can read along."""
    if settings.tls:
        return Finding(level="ok", check="server", text=f"{settings.url} answers, over an encrypted connection")
    if settings.host.startswith(_LOOPBACK) or settings.token is None:
        return Finding(level="ok", check="server", text=f"{settings.url} answers")
    text = f"{settings.url}: the token is sent unencrypted; use https://, or a network that you trust"
    return Finding(level="warning", check="server", text=text)


def _numbers(text: str) -> list[int]:
    """The numbers of partitions in a header; what is none, which no server of ours sends, is passed over."""
    return [int(part) for part in text.split(",") if part.isascii() and part.isdecimal() and len(part) < 6]


def _bodies(tasks: Sequence[NewTask], map_version: int) -> Iterator[bytes]:
    """The bodies of as many calls as it takes to record these tasks."""
    if tasks:
        body = calls.ENQUEUE.write_request(calls.Enqueue(tasks=list(tasks), map_version=map_version))
        if _too_large(body, tasks):
            for half in _halves(tasks):
                yield from _bodies(half, map_version)
        else:
            yield body


def _too_large(body: bytes, items: Sequence[object]) -> bool:
    """Whether a server would refuse a body that could be made smaller."""
    return len(body) > MAX_BATCH_BYTES // 2 and len(items) > 1


def _halves(items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    middle = len(items) // 2
    return items[:middle], items[middle:]


def _not_fresh(arguments: calls.Reserve) -> bytes:
    """The repeat of a reserve has to look for what the call before it got."""
    return calls.RESERVE.write_request(replace(arguments, request=replace(arguments.request, fresh=False)))
