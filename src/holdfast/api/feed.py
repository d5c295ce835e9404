"""What changes in queues and workers, told to everybody who listens, from one look at the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.admin.inspect import queue_table, worker_table
from holdfast.api.guard import Caller
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.api")

_LOOK_SECONDS: Final = 1.0
#: A comment that nobody reads, so that nothing in between takes the connection for dead.
_QUIET_SECONDS: Final = 15.0
#: A listener that is so many looks behind is told everything anew.
_MAX_BEHIND: Final = 16

_encode = msgspec.json.Encoder().encode

_Rows = dict[str, Any]


class Feed:
    """The state of all queues and workers, and those who want to know of its changes."""

    def __init__(self, store: Store, look_seconds: float = _LOOK_SECONDS) -> None:
        self._store = store
        self._look_seconds = look_seconds
        self._queues: _Rows = {}
        self._workers: _Rows = {}
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    async def listen(self, caller: Caller) -> AsyncIterator[bytes]:
        """Server-sent events: all that is known first, then what changes, until the gateway leaves."""
        with caller.waiting():
            await self._begin()
        return self._events(caller)

    async def _events(self, caller: Caller) -> AsyncIterator[bytes]:
        events: asyncio.Queue[bytes] = asyncio.Queue(_MAX_BEHIND)
        with caller.waiting() as ended:
            self._listeners.add(events)  # before the first event is read, which may take as long as a few looks
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
        """Ends the looking."""
        self.release_all()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _begin(self) -> None:
        """Looks before the first listener is told anything, then as long as there are any."""
        if self._looking is None:
            await self._look()
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._look_seconds)
                if not self._listeners:
                    return
                try:
                    await self._look()
                except HoldfastError as error:
                    log.warning("looking for the events: %s", error)
        finally:
            self._looking = None

    async def _look(self) -> None:
        queues = {row.queue: row for row in await queue_table(self._store)}
        workers = {worker.worker_id: worker for worker in await worker_table(self._store)}
        news = _changes("queues", self._queues, queues) + _changes("workers", self._workers, workers, _without_time)
        self._queues, self._workers = queues, workers
        if news:
            for events in self._listeners:
                self._tell(events, news)

    def _tell(self, events: asyncio.Queue[bytes], news: bytes) -> None:
        if events.full():
            while not events.empty():
                events.get_nowait()
            news = self._everything()
        events.put_nowait(news)

    def _everything(self) -> bytes:
        return _event("queues", list(self._queues.values()), [], complete=True) + _event(
            "workers", list(self._workers.values()), [], complete=True
        )


def _changes(name: str, before: _Rows, after: _Rows, of: Callable[[Any], Any] = lambda row: row) -> bytes:
    changed = [row for key, row in after.items() if key not in before or of(before[key]) != of(row)]
    gone = [key for key in before if key not in after]
    return _event(name, changed, gone) if changed or gone else b""


def _event(name: str, rows: Sequence[Any], gone: Sequence[str], *, complete: bool = False) -> bytes:
    data = _encode({"complete": complete, name: rows, "gone": gone})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _without_time(worker: Any) -> Any:
    """A heartbeat alone is no news."""
    return msgspec.structs.replace(worker, seen_at_ms=0)
