"""A reserve that waits: looks, waits for a ring, looks again, until there is something or the time is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from holdfast.api.waiters import Place, Waiters
from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Reserve, Reserved, Store

log = logging.getLogger("holdfast.api")

#: Where nothing was found, nobody looks again for this long unless there is a ring: of a thousand who come back to
#: wait, one looks.
_DRY_SECONDS: Final = 1.0
#: Kinds of requests for which that is remembered.
_MAX_KINDS: Final = 1_000
_LAST_SECONDS: Final = 2.0

#: What it was that was found empty: the queues and the types that were asked for.
_Kind = tuple[tuple[str, ...], frozenset[str] | None]


class Polls:
    """Long polls of one gateway."""

    def __init__(self, store: Store, waiters: Waiters) -> None:
        self._store = store
        self._waiters = waiters
        #: When nothing was found, and what had been heard by then.
        self._dry: dict[_Kind, tuple[float, tuple[object, ...]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def reserve(
        self, request: Reserve, settle: Sequence[Change], wait_seconds: float, *, hand_back: bool
    ) -> Reserved:
        """As the store's, but an answer without tasks comes only after this time; `settle` is applied at once.

        With `hand_back`, what is claimed for a client that goes away meanwhile is released: nobody can ask for it.
        """
        if wait_seconds <= 0:
            return await self._store.reserve(request, settle)
        now = asyncio.get_running_loop().time
        until = now() + wait_seconds
        async with self._waiters.place([share.queue for share in request.shares], request.types) as place:
            first = Reserved([])
            if settle or not request.fresh or not self._is_dry(place, request):
                first = await self._look(place, request, settle, hand_back)
            reserved = first
            while not reserved.tasks and await place.rung(until - now()):
                reserved = await self._look(place, request, (), hand_back)
            place.found = bool(reserved.tasks)
        return Reserved(reserved.tasks, first.verdicts)

    async def close(self) -> None:
        """Waits, not for long, for what is under way."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LAST_SECONDS)

    async def _look(self, place: Place, request: Reserve, settle: Sequence[Change], hand_back: bool) -> Reserved:
        heard = place.heard()
        asking = asyncio.ensure_future(self._store.reserve(request, settle))
        try:
            reserved = await asyncio.shield(asking)  # cut off in the middle, nobody would know what was claimed
        except asyncio.CancelledError:
            self._see_to(asking, hand_back)
            raise
        if len(reserved.tasks) < request.max_tasks:
            self._note_dry(_kind(request), heard)
        return reserved

    def _note_dry(self, kind: _Kind, heard: tuple[object, ...]) -> None:
        if len(self._dry) >= _MAX_KINDS:
            self._dry.clear()
        self._dry[kind] = asyncio.get_running_loop().time(), heard

    def _is_dry(self, place: Place, request: Reserve) -> bool:
        at, heard = self._dry.get(_kind(request), (0.0, ()))
        return heard == place.heard() and asyncio.get_running_loop().time() - at < _DRY_SECONDS

    def _see_to(self, asking: asyncio.Future[Reserved], hand_back: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._end(asking, hand_back))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, asking: asyncio.Future[Reserved], hand_back: bool) -> None:
        """Waits for the answer to a look that nobody waits for any more."""
        try:
            tasks = (await asking).tasks
            if tasks and hand_back:
                await self._store.apply([lifecycle.release(task.task_id, task.token) for task in tasks])
        except HoldfastError as error:
            log.warning("tasks for a client that has gone are not handed back, their leases run out: %s", error)


def _kind(request: Reserve) -> _Kind:
    return tuple(share.queue for share in request.shares), request.types
