"""Everybody who waits at this gateway for the end of a task, behind one look at the store."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.api.pages import weight
from holdfast.core.task import FINAL_STATES
from holdfast.errors import HoldfastError
from holdfast.stores.contract import MAX_BATCH, Store

log = logging.getLogger("holdfast.api")

#: The store is not asked more often, however many wait.
_TICK_SECONDS: Final = 0.02
#: The longer a task is waited for, the less often it is asked for.
_LONGEST_PAUSE_SECONDS: Final = 0.25
_GROWTH: Final = 1.5
#: A look brings whole tasks: the more there is to bring, the less often, but never less often than this.
_BYTES_A_SECOND: Final = 32 * 1024 * 1024
_LONGEST_PAUSE_OF_LARGE_SECONDS: Final = 2.0

_End = asyncio.Future[None]


class _Watched:
    """A task, those who wait for its end, and when it is looked at next."""

    __slots__ = ("due_at", "ends", "pause", "size_bytes")

    def __init__(self) -> None:
        self.ends: set[_End] = set()
        self.pause = _TICK_SECONDS
        self.due_at = 0.0
        self.size_bytes = 0

    def put_off(self, now: float, watched: int) -> None:
        """Looks at it again after its pause, or when as many of its size would have been brought."""
        brought_seconds = self.size_bytes * watched / _BYTES_A_SECOND
        self.due_at = now + max(self.pause, min(brought_seconds, _LONGEST_PAUSE_OF_LARGE_SECONDS))
        self.pause = min(self.pause * _GROWTH, _LONGEST_PAUSE_SECONDS)

    def finish(self) -> None:
        for end in self.ends:
            if not end.done():
                end.set_result(None)


class Results:
    """Tasks that somebody waits for; those whose turn it is are asked for in one call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: dict[str, _Watched] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    async def ended(self, task_id: str, timeout_seconds: float) -> None:
        """Returns when the task has ended or is not known any more, or the time is over."""
        if self._closed or timeout_seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        end: _End = loop.create_future()
        watched = self._watched.setdefault(task_id, _Watched())
        watched.ends.add(end)
        if self._looking is None:
            self._looking = loop.create_task(self._look())
        try:
            await asyncio.wait([end], timeout=timeout_seconds)
        finally:
            watched.ends.discard(end)
            if not watched.ends:
                self._watched.pop(task_id, None)

    def release_all(self) -> None:
        """Nobody waits any longer, now and from now on."""
        self._closed = True
        for watched in self._watched.values():
            watched.finish()

    async def close(self) -> None:
        """Ends the looking."""
        self.release_all()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._watched:
                await asyncio.sleep(_TICK_SECONDS)
                due = [task_id for task_id, watched in self._watched.items() if watched.due_at <= now()]
                for start in range(0, len(due), MAX_BATCH):
                    await self._look_at(due[start : start + MAX_BATCH])
                for watched in filter(None, map(self._watched.get, due)):
                    watched.put_off(now(), len(self._watched))
        finally:
            self._looking = None

    async def _look_at(self, task_ids: list[str]) -> None:
        try:
            found = await self._store.get(task_ids)
        except HoldfastError as error:
            log.warning("waiting for results: %s", error)
            return
        for task_id, task in zip(task_ids, found, strict=True):
            watched = self._watched.get(task_id)
            if watched is None:
                continue
            if task is None or task.state in FINAL_STATES:
                watched.finish()
            else:
                watched.size_bytes = weight(task)
