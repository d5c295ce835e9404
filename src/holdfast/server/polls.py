"""Long polls: requests that wait for tasks or for the end of a task."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace
from starlette.requests import Request

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.core.task import FINAL_STATES, Task
from holdfast.errors import HoldfastError
from holdfast.server.auth import Denied
from holdfast.server.budgets import Share
from holdfast.server.edge import ClientGone
from holdfast.server.rendering import each_task, weight
from holdfast.server.waiters import Place, Waiters
from holdfast.stores.contract import MAX_RESERVE_BYTES, Reserve, Reserved, Store
from holdfast.stores.remote import problems

if TYPE_CHECKING:
    from holdfast.server.routing import Call


T = TypeVar("T")


_NO_LONGER_GOOD: Final = problems.UNAUTHORIZED.problem("this token was revoked or has expired")

log = logging.getLogger("holdfast.server")

#: Shortest interval of reads, however many requests wait.
_PAUSE_SECONDS: Final = 0.02
#: The interval of one task grows with the time that it is waited for.
_LONGEST_PAUSE_SECONDS: Final = 0.25
_GROWTH: Final = 1.5
#: A read brings whole tasks: the more bytes, the less often, up to this interval.
_BYTES_A_SECOND: Final = 32 * 1024 * 1024
_LONGEST_PAUSE_OF_LARGE_SECONDS: Final = 2.0
_End = asyncio.Future[None]
#: After an empty reserve, others of the same kind skip theirs for this long unless there is a wake-up: of a thousand
#: clients that come back to wait, one reads the store.
_DRY_SECONDS: Final = 1.0
#: Kinds of requests for which that is remembered, and tokens of which it is known how much they get.
_MAX_KINDS: Final = 1_000
_LAST_SECONDS: Final = 2.0
_MAX_CLAIM_IDS: Final = 50_000
#: Of a task without its payload.
_TASK_BYTES: Final = 500
#: Room for an answer while it is not known how long it will be. The less a token usually gets, the more of its reserves
#: go on at once: those that wait for a partition which is away do not hold up the others.
MIN_RESERVE_SHARE_BYTES: Final = 256 * 1024
MAX_RESERVE_SHARE_BYTES: Final = 2 * 1024 * 1024
#: What it was that was found empty: the queues and the types that were asked for.
_Kind = tuple[tuple[str, ...], frozenset[str] | None]


# -- requests that wait --------------------------------------------------------------------------------------------


async def while_there(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client disconnects or its token ends. Read the body first."""
    with contextlib.closing(work), call.caller.waiting() as ended:
        gone = asyncio.ensure_future(_gone(call.request))
        try:
            async with asyncio.timeout(None) as presence:
                stop = functools.partial(_stop, presence)
                gone.add_done_callback(stop)
                ended.add_done_callback(stop)
                try:
                    return await work
                finally:
                    gone.remove_done_callback(stop)
                    ended.remove_done_callback(stop)
        except TimeoutError:
            if not presence.expired():
                raise
            raise Denied(_NO_LONGER_GOOD) if ended.done() else ClientGone from None
        finally:
            gone.cancel()


def _stop(presence: asyncio.Timeout, _: object) -> None:
    with contextlib.suppress(RuntimeError):  # the work was done in the very moment in which the client left
        presence.reschedule(asyncio.get_running_loop().time())


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# -- waiting for the end of a task ---------------------------------------------------------------------------------


class _Watched:
    """A task, the requests that wait for its end, and the time of its next read."""

    __slots__ = ("due_at", "ends", "pause", "size_bytes")

    def __init__(self) -> None:
        self.ends: set[_End] = set()
        self.pause = _PAUSE_SECONDS
        self.due_at = 0.0
        self.size_bytes = 0

    def put_off(self, now: float, watched: int) -> None:
        """Schedules the next read after its pause, or later if many large tasks are waited for."""
        brought_seconds = self.size_bytes * watched / _BYTES_A_SECOND
        self.due_at = now + max(self.pause, min(brought_seconds, _LONGEST_PAUSE_OF_LARGE_SECONDS))
        self.pause = min(self.pause * _GROWTH, _LONGEST_PAUSE_SECONDS)

    def finish(self) -> None:
        for end in self.ends:
            if not end.done():
                end.set_result(None)


class Results:
    """Tasks whose end is waited for; those that are due are read in one call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: dict[str, _Watched] = {}
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def ended(self, task_id: str, timeout_seconds: float) -> None:
        """Returns when the task has ended or is not known any more, or the time is over."""
        if self._closed or timeout_seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        end: _End = loop.create_future()
        watched = self._watched.setdefault(task_id, _Watched())
        watched.ends.add(end)
        if self._reading is None:
            self._reading = loop.create_task(self._read_all())
        try:
            await asyncio.wait([end], timeout=timeout_seconds)
        finally:
            watched.ends.discard(end)
            if not watched.ends:
                self._watched.pop(task_id, None)

    def release_all(self) -> None:
        """Ends all waits; later ones end at once."""
        self._closed = True
        for watched in self._watched.values():
            watched.finish()

    async def close(self) -> None:
        """Ends the reads."""
        self.release_all()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_all(self) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._watched:
                await asyncio.sleep(_PAUSE_SECONDS)
                due = [task_id for task_id, watched in self._watched.items() if watched.due_at <= now()]
                await self._read(due)
                for watched in filter(None, map(self._watched.get, due)):
                    watched.put_off(now(), len(self._watched))
        finally:
            self._reading = None

    async def _read(self, task_ids: list[str]) -> None:
        left = iter(task_ids)
        try:
            async for task in each_task(self._store, task_ids):
                self._see(next(left), task)
        except HoldfastError as error:
            log.warning("could not read tasks whose results are waited for: %s", error)

    def _see(self, task_id: str, task: Task | None) -> None:
        watched = self._watched.get(task_id)
        if watched is None:
            return
        if task is None or task.state in FINAL_STATES:
            watched.finish()
        else:
            watched.size_bytes = weight(task)


# -- waiting for tasks ---------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """The last reserve of a kind: when, the wake-ups before it, and whether it took all that was ready."""

    at: float
    generations: tuple[object, ...]
    is_all: bool


_NEVER: Final = _Found(-_DRY_SECONDS, (), is_all=True)


class Polls:
    """The long polls of one server."""

    def __init__(self, store: Store, waiters: Waiters) -> None:
        self._store = store
        self._waiters = waiters
        #: Bytes claimed under each claim_id here. One that holds as much as a reserve may give is not `fresh` again,
        #: whatever its caller says: each repeat of its reserve would bring all of it.
        self._claimed_bytes: dict[str, int] = {}
        #: The largest recent answer of each token, in bytes.
        self._expected: dict[str, int] = {}
        self._found: dict[_Kind, _Found] = {}
        #: Reserves under way of kinds that were empty last time: further requests wait for their result. A slow store,
        #: or a thousand clients that come back at once, would else make it a thousand reserves.
        self._reserves: dict[_Kind, asyncio.Future[Reserved]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def reserve(
        self, request: Reserve, settle: Sequence[Change], wait_seconds: float, share: Share, *, hand_back: bool
    ) -> Reserved:
        """As the store's, but an answer without tasks comes only after this time; `settle` is applied at once.

        With `hand_back`, what is claimed for a client that goes away meanwhile is released: no client can ask for it.
        """
        if wait_seconds <= 0:
            return await self.reserve_now(self._store, request, settle, share)
        now = asyncio.get_running_loop().time
        until = now() + wait_seconds
        queues = [each.queue for each in request.shares]
        async with self._waiters.place(queues, request.types, share.token) as place:
            first = Reserved([])
            if settle or not request.fresh or not await self._is_dry(place, request, until):
                first = await self._try(place, request, settle, share, hand_back=hand_back)
            reserved = first
            while not reserved.tasks and await place.woken(until - now()):
                reserved = await self._try(place, request, (), share, hand_back=hand_back)
            place.found = bool(reserved.tasks)
        return Reserved(reserved.tasks, first.verdicts, reserved.cut)

    async def reserve_now(self, store: Store, request: Reserve, settle: Sequence[Change], share: Share) -> Reserved:
        """What this store gives without a wait, as soon as there is room for it."""
        expected = self._expected.get(share.token, MAX_RESERVE_SHARE_BYTES)
        await share.wait(min(max(expected, MIN_RESERVE_SHARE_BYTES), MAX_RESERVE_SHARE_BYTES))
        if request.fresh and self._claimed_bytes.get(request.claim_id, 0) >= MAX_RESERVE_BYTES:
            request = replace(request, fresh=False)
        reserved = await store.reserve(request, settle)
        payload_bytes = sum(len(task.payload) for task in reserved.tasks)
        if reserved.tasks:
            before = self._claimed_bytes.pop(request.claim_id, 0) if request.fresh else 0
            self._claimed_bytes[request.claim_id] = before + payload_bytes + len(reserved.tasks) * _TASK_BYTES
            if len(self._claimed_bytes) > _MAX_CLAIM_IDS:
                del self._claimed_bytes[next(iter(self._claimed_bytes))]
        size_bytes = 2 * payload_bytes  # here, and in the answer
        if len(self._expected) >= _MAX_KINDS:
            self._expected.clear()
        self._expected[share.token] = max(size_bytes, expected * 19 // 20)
        share.shrink(size_bytes)
        return reserved

    async def close(self) -> None:
        """Waits, not for long, for what is under way."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LAST_SECONDS)

    async def _try(
        self, place: Place, request: Reserve, settle: Sequence[Change], share: Share, *, hand_back: bool
    ) -> Reserved:
        kind, generations = _kind(request), place.generations()
        asking = asyncio.ensure_future(self.reserve_now(self._store, request, settle, share))
        if request.fresh:  # else it may come to what was claimed before
            if self._found.get(kind, _NEVER).is_all:
                self._reserves.setdefault(kind, asking)
            asking.add_done_callback(partial(self._note, kind, generations, request.max_tasks))
        try:
            return await asyncio.shield(asking)  # cancelled in the middle, the claimed tasks would be unknown
        except asyncio.CancelledError:
            self._see_to(asking, hand_back)
            raise

    def _note(
        self, kind: _Kind, generations: tuple[object, ...], max_tasks: int, reserve: asyncio.Future[Reserved]
    ) -> None:
        """Records a finished reserve, before other requests see its result."""
        if self._reserves.get(kind) is reserve:
            del self._reserves[kind]
        if not _has_failed(reserve):
            if len(self._found) >= _MAX_KINDS:
                self._found.clear()
            is_all = len(reserve.result().tasks) < max_tasks and not reserve.result().cut
            self._found[kind] = _Found(asyncio.get_running_loop().time(), generations, is_all)

    async def _is_dry(self, place: Place, request: Reserve, until: float) -> bool:
        """Whether a reserve would find nothing; false if that is not known in time."""
        kind, now = _kind(request), asyncio.get_running_loop().time
        while True:
            found = self._found.get(kind, _NEVER)
            if found.is_all and found.generations == place.generations() and now() - found.at < _DRY_SECONDS:
                return True
            reserve = self._reserves.get(kind)
            if reserve is None:
                return False
            await asyncio.wait([reserve], timeout=until - now())
            if not reserve.done() or _has_failed(reserve):
                return False

    def _see_to(self, asking: asyncio.Future[Reserved], hand_back: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._end(asking, hand_back))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, asking: asyncio.Future[Reserved], hand_back: bool) -> None:
        """Waits for the answer to an abandoned reserve."""
        try:
            tasks = (await asking).tasks
            if tasks and hand_back:
                await self._store.apply([lifecycle.release(task.task_id, task.token) for task in tasks])
        except (HoldfastError, Denied) as error:
            log.warning(
                "could not release tasks that were claimed for a closed connection; their leases will expire: %s", error
            )


def _has_failed(reserve: asyncio.Future[Reserved]) -> bool:
    return reserve.cancelled() or reserve.exception() is not None


def _kind(request: Reserve) -> _Kind:
    return tuple(share.queue for share in request.shares), request.types
