"""A reserve that waits: looks, waits for a ring, looks again, until there is something or the time is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

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


class _Found(NamedTuple):
    """What the last look came to: when, what had been heard before it, and whether it took all that there was."""

    at: float
    heard: tuple[object, ...]
    is_all: bool


_NEVER: Final = _Found(-_DRY_SECONDS, (), is_all=True)


class Polls:
    """Long polls of one gateway."""

    def __init__(self, store: Store, waiters: Waiters) -> None:
        self._store = store
        self._waiters = waiters
        self._found: dict[_Kind, _Found] = {}
        #: Looks under way where there was nothing left last time: who comes meanwhile waits for what they come to. A
        #: store that is slow, or a thousand who come back at once, would make it a thousand looks.
        self._looks: dict[_Kind, asyncio.Future[Reserved]] = {}
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
            if settle or not request.fresh or not await self._is_dry(place, request, until):
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
        kind, heard = _kind(request), place.heard()
        asking = asyncio.ensure_future(self._store.reserve(request, settle))
        if request.fresh:  # else it may come to what was claimed before
            if self._found.get(kind, _NEVER).is_all:
                self._looks.setdefault(kind, asking)
            asking.add_done_callback(partial(self._note, kind, heard, request.max_tasks))
        try:
            return await asyncio.shield(asking)  # cut off in the middle, nobody would know what was claimed
        except asyncio.CancelledError:
            self._see_to(asking, hand_back)
            raise

    def _note(self, kind: _Kind, heard: tuple[object, ...], max_tasks: int, look: asyncio.Future[Reserved]) -> None:
        """Before anybody else is told of a look that has ended."""
        if self._looks.get(kind) is look:
            del self._looks[kind]
        if not _has_failed(look):
            if len(self._found) >= _MAX_KINDS:
                self._found.clear()
            is_all = len(look.result().tasks) < max_tasks
            self._found[kind] = _Found(asyncio.get_running_loop().time(), heard, is_all)

    async def _is_dry(self, place: Place, request: Reserve, until: float) -> bool:
        """Whether a look is in vain; if it cannot be known in time, it is not."""
        kind, now = _kind(request), asyncio.get_running_loop().time
        while True:
            found = self._found.get(kind, _NEVER)
            if found.is_all and found.heard == place.heard() and now() - found.at < _DRY_SECONDS:
                return True
            look = self._looks.get(kind)
            if look is None:
                return False
            await asyncio.wait([look], timeout=until - now())
            if not look.done() or _has_failed(look):
                return False

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


def _has_failed(look: asyncio.Future[Reserved]) -> bool:
    return look.cancelled() or look.exception() is not None


def _kind(request: Reserve) -> _Kind:
    return tuple(share.queue for share in request.shares), request.types
