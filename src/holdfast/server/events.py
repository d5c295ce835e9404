"""Server-sent events of queues and workers, and the shared reads of the store behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.admin.inspect import queue_table, worker_table
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.server.auth import Caller
from holdfast.stores import documents
from holdfast.stores.capabilities import PartialView, in_part
from holdfast.stores.contract import LIST_OF_WORKERS, QueueCounts, Store, WorkerRecord
from holdfast.stores.decorate import PassingStore

T = TypeVar("T")

#: After a read, the store is left alone for this many times the duration of the read, at most this long.
_REST: Final = 4
_LONGEST_REST_SECONDS: Final = 1.0

log = logging.getLogger("holdfast.server")

_READ_SECONDS: Final = 1.0
#: Interval of comments that keep proxies from closing an idle stream.
_QUIET_SECONDS: Final = 15.0
#: A listener that is this many events behind is sent the complete state again.
_MAX_BEHIND: Final = 16
_encode = msgspec.json.Encoder().encode
_Rows = dict[str, Any]
#: What was found, and the partitions that were left out.
_Part: TypeAlias = tuple[list[T], Mapping[int, StoreUnavailable]]


# -- shared reads --------------------------------------------------------------------------------------------------


class SharedRead(Generic[T]):
    """One read for all callers that ask before it begins: the answer is never older than the question."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._next: asyncio.Task[T] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._rest_until = 0.0

    async def get(self) -> T:
        """What the store says."""
        if self._next is None:
            self._next = asyncio.create_task(self._ask())
            self._next.add_done_callback(_told)
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """Ends the read under way."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)

    async def _ask(self) -> T:
        now = asyncio.get_running_loop().time
        try:
            async with self._one_at_a_time:
                await asyncio.sleep(max(0.0, self._rest_until - now()))
                self._next = None  # callers from now on may have changed what is read
                begun = now()
                try:
                    return await self._read()
                finally:
                    self._rest_until = now() + min(_REST * (now() - begun), _LONGEST_REST_SECONDS)
        except asyncio.CancelledError:
            self._next = None
            raise


class CachedRead(Generic[T]):
    """One read per interval; other callers get the result of the last one, or its error."""

    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._last: asyncio.Task[T] | None = None
        self._ended_at = 0.0

    async def get(self) -> T:
        """What the store has said last."""
        now = asyncio.get_running_loop().time
        if self._last is None or (self._last.done() and now() - self._ended_at >= self._seconds):
            self._last = asyncio.create_task(self._ask())
            self._last.add_done_callback(_told)
        return await asyncio.shield(self._last)

    async def close(self) -> None:
        """Ends the read under way."""
        if self._last is not None:
            self._last.cancel()
            await asyncio.gather(self._last, return_exceptions=True)

    async def _ask(self) -> T:
        try:
            return await self._read()
        finally:
            self._ended_at = asyncio.get_running_loop().time()


def _told(read: asyncio.Task[object]) -> None:
    if not read.cancelled():
        read.exception()  # raised in the callers, of which there may be none left


class SharedReads(PassingStore):
    """A store whose counts and workers are read once for all callers, whole or in part."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, in_part=self._in_part)
        self._counts = SharedRead(super().counts)
        self._workers = SharedRead(super().workers)
        self._counts_in_part = SharedRead(lambda: _with_left_out(in_part(inner), lambda view: view.counts()))
        self._workers_in_part = SharedRead(lambda: _with_left_out(in_part(inner), lambda view: view.workers()))

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues."""
        return await self._counts.get()

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of."""
        return await self._workers.get()

    async def end(self) -> None:
        """Ends the reads under way; the store itself stays open."""
        for read in (self._counts, self._workers, self._counts_in_part, self._workers_in_part):
            await read.close()

    def _in_part(self, *, until_deadline: bool = False) -> PartialView:
        """A view with shared reads; each tells all its callers what it has left out."""
        inner = in_part(self.inner, until_deadline=until_deadline)
        return PartialView(_ViewOfReads(inner, self._counts_in_part, self._workers_in_part), inner.left_out)


class _ViewOfReads(PassingStore):
    """A view whose counts and workers are those of all callers."""

    def __init__(
        self, view: PartialView, counts: SharedRead[_Part[QueueCounts]], workers: SharedRead[_Part[WorkerRecord]]
    ) -> None:
        super().__init__(view.store)
        self._left_out = view.left_out
        self._counts = counts
        self._workers = workers

    async def counts(self) -> list[QueueCounts]:
        """Depths of the queues in the partitions that answer."""
        return self._noted(await self._counts.get())

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of, none if the partition with their list is away."""
        return self._noted(await self._workers.get())

    def _noted(self, part: _Part[T]) -> list[T]:
        found, left_out = part
        self._left_out.update(left_out)
        return found


async def _with_left_out(view: PartialView, read: Callable[[Store], Awaitable[list[T]]]) -> _Part[T]:
    return await read(view.store), view.left_out


# -- events --------------------------------------------------------------------------------------------------------


class Feed:
    """The state of all queues and workers, and the listeners to its changes."""

    def __init__(self, store: Store, read_seconds: float = _READ_SECONDS) -> None:
        self._store = store
        self._read_seconds = read_seconds
        self._queues: _Rows = {}
        self._workers: _Rows = {}
        #: Partitions that were away at the last read; what they have is as it was before.
        self._left_out: list[int] = []
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def listeners(self) -> int:
        """The number of listeners."""
        return len(self._listeners)

    async def listen(self, caller: Caller) -> AsyncIterator[bytes]:
        """Server-sent events: the complete state first, then changes, until the server shuts down."""
        with caller.waiting():
            await self._begin()
        return self._events(caller)

    async def _events(self, caller: Caller) -> AsyncIterator[bytes]:
        events: asyncio.Queue[bytes] = asyncio.Queue(_MAX_BEHIND)
        with caller.waiting() as ended:
            self._listeners.add(events)  # before the first event is read, which may take several intervals
            ended.add_done_callback(lambda _: self._tell(events, b""))
            try:
                yield b"retry: 2000\n\n" + self._everything()
                async for event in self._news(events, ended):
                    yield event
            finally:
                self._listeners.discard(events)

    async def _news(self, events: asyncio.Queue[bytes], ended: asyncio.Future[None]) -> AsyncIterator[bytes]:
        while not self._closed and not ended.done():
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    event = await events.get()
            except TimeoutError:
                event = b": still here\n\n"
            if event:
                yield event

    def release_all(self) -> None:
        """The streams end."""
        self._closed = True
        for events in self._listeners:
            if not events.full():
                events.put_nowait(b"")

    async def close(self) -> None:
        """Ends the reads."""
        self.release_all()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _begin(self) -> None:
        """Reads the store before the first event, then for as long as there are listeners."""
        if self._reading is None:
            await self._read()
        if self._reading is None and not self._closed:
            self._reading = asyncio.create_task(self._read_on())

    async def _read_on(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._read_seconds)
                if not self._listeners:
                    return
                try:
                    await self._read()
                except HoldfastError as error:
                    log.warning("could not read queues and workers for the event streams: %s", error)
        finally:
            self._reading = None

    async def _read(self) -> None:
        view = in_part(self._store)
        queues = {row.queue: row for row in await queue_table(view.store)}
        # Without their types, which may be thousands.
        found = (replace(worker, types=()) for worker in await worker_table(view.store))
        workers = {worker.worker_id: worker for worker in found}
        left_out = sorted(view.left_out)
        if left_out:
            queues = await self._with_last_rows(queues, left_out)
        if LIST_OF_WORKERS in left_out:
            workers = self._workers
        is_news, self._left_out = left_out != self._left_out, left_out
        news = self._changes("queues", self._queues, queues, _as_it_is, is_news)
        news += self._changes("workers", self._workers, workers, _without_time, is_news)
        self._queues, self._workers = queues, workers
        if news:
            for events in self._listeners:
                self._tell(events, news)

    async def _with_last_rows(self, queues: _Rows, left_out: Collection[int]) -> _Rows:
        """The queues; what is not known of them while partitions are away is as it was before."""
        reach = (await documents.partition_map(self._store)).reach
        rows = {queue: row for queue, row in queues.items() if not set(left_out).intersection(reach(queue))}
        for queue, last in self._queues.items():
            if queue in rows and LIST_OF_WORKERS in left_out:
                rows[queue] = replace(rows[queue], workers=last.workers)
            elif queue not in rows and set(left_out).intersection(reach(queue)):
                rows[queue] = last
        return rows

    def _tell(self, events: asyncio.Queue[bytes], news: bytes) -> None:
        if events.full():
            while not events.empty():
                events.get_nowait()
            news = self._everything()
        events.put_nowait(news)

    def _everything(self) -> bytes:
        queues, workers = list(self._queues.values()), list(self._workers.values())
        return self._event("queues", queues, [], complete=True) + self._event("workers", workers, [], complete=True)

    def _changes(self, name: str, before: _Rows, after: _Rows, of: Callable[[Any], Any], is_news: bool) -> bytes:
        changed = [row for key, row in after.items() if key not in before or of(before[key]) != of(row)]
        gone = [key for key in before if key not in after]
        return self._event(name, changed, gone) if changed or gone or is_news else b""

    def _event(self, name: str, rows: Sequence[Any], gone: Sequence[str], *, complete: bool = False) -> bytes:
        left_out = {"left_out": self._left_out} if self._left_out else {}
        data = _encode({"complete": complete, name: rows, "gone": gone, **left_out})
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _as_it_is(row: Any) -> Any:
    return row


def _without_time(worker: Any) -> Any:
    """A heartbeat alone is no news."""
    return replace(worker, seen_at_ms=0)
