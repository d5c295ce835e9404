"""Requests that wait for work, merged: one listener at the store for all requests that wait for a queue.

A wake-up goes to the request that has waited longest. A request that ends without using it, or finds no task that it
can run, passes it on. A wake-up is a hint, as everywhere: losing one costs latency, never work.

There are at most `wakeups.MAX_WAITS` listeners. A request for a queue that has none polls the store once a second, and
less often when more than `_LOOKS_A_SECOND` requests of the same token do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from holdfast.server.wakeups import SHARED_SECONDS, Listener, Listeners
from holdfast.stores.contract import Store

#: A queue is listened to this long after its last request left without a task: most clients come back at once. A
#: wake-up that arrives meanwhile is kept for them; if none comes, clients of other servers miss it until maintenance
#: notifies again.
_LINGER_SECONDS: Final = 0.02
#: Polling without a listener: of one request, of all requests of one token per second, and the longest interval.
_LOOK_SECONDS: Final = 1.0
_LOOKS_A_SECOND: Final = 200
_RAREST_LOOK_SECONDS: Final = 10.0
#: Long waits end together, this often: one by one, two thousand of them would wake an idle process all the time, and
#: each would cost three times as much.
_END_SECONDS: Final = 0.25


class Wakeup:
    """One wake-up on its way, and the kinds of requests that could not use it."""

    __slots__ = ("declined_by", "source")

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.declined_by: set[Hashable] = set()

    def pass_on(self) -> None:
        """Wakes the next request that may use it, if there is one."""
        self.source.wake(self)


class Waiters:
    """The sources of wake-ups of a store (its queues), each with the requests that wait for it."""

    def __init__(self, store: Store) -> None:
        self._sources: dict[str, _Source] = {}
        self._listeners = Listeners(store)
        #: Requests that poll, by token.
        self._looking: dict[str, int] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len({place for source in self._sources.values() for place in source.places})

    @property
    def listening(self) -> int:
        """Waits at the store."""
        return len(self._listeners)

    def place(self, sources: Sequence[str], kind: Hashable = None, token: str = "") -> Place:
        """A place in the line of each source; a wake-up that a request cannot use goes to one of another kind."""
        return Place(self, tuple(dict.fromkeys(sources)), kind, token)

    def release_all(self) -> None:
        """Ends all waits; later ones end at once."""
        self._closed = True
        for source in self._sources.values():
            for place in source.places:
                place.release()

    async def close(self) -> None:
        """Ends the listeners."""
        self.release_all()
        await self._listeners.close()

    # -- for places ------------------------------------------------------------------------------------------

    def enter(self, place: Place) -> bool:
        """Starts to listen for this place; true if one of its sources had no listener before."""
        if self._closed:
            place.release()
            return False
        is_new = False
        for name in place.sources:
            source = self._sources.get(name)
            if source is None:
                source = self._sources[name] = _Source(name, self)
            source.keep()
            source.places[place] = None
            if source.listener is None:
                source.listener = self._listeners.listen(source, place.token)
                is_new = is_new or source.listener is not None
        return is_new

    def offer_pending(self, place: Place) -> None:
        """Gives the place a wake-up that arrived while no request waited, if there is one."""
        for name in place.sources:
            wakeup, self._sources[name].pending = self._sources[name].pending, None
            if wakeup is not None:
                place.wake(wakeup)
                return

    def leave(self, place: Place, *, linger: bool) -> None:
        """Frees the place at once."""
        for name in place.sources:
            source = self._sources.get(name)
            if source is not None:
                source.places.pop(place, None)
                if not source.places:
                    source.go(0.0 if self._closed else _linger_seconds(source, linger))

    def generations(self, names: Sequence[str]) -> tuple[object, ...]:
        """A value that changes with each wake-up of these sources, and while one of them has no listener."""
        return tuple(self._sources[name].generation if self._is_listened_to(name) else object() for name in names)

    @contextmanager
    def looking(self, place: Place) -> Iterator[float | None]:
        """The polling interval of this place in seconds; None if all its sources have listeners."""
        if all(map(self._is_listened_to, place.sources)):
            yield None
            return
        looking = self._looking[place.token] = self._looking.get(place.token, 0) + 1
        try:
            yield min(max(_LOOK_SECONDS, looking / _LOOKS_A_SECOND), _RAREST_LOOK_SECONDS)
        finally:
            self._looking[place.token] -= 1
            if not self._looking[place.token]:
                del self._looking[place.token]

    def forget(self, source: _Source) -> None:
        """Ends listening to this source."""
        if source.listener is not None:
            self._listeners.leave(source, source.listener)
        self._sources.pop(source.name, None)

    def _is_listened_to(self, name: str) -> bool:
        source = self._sources.get(name)
        return source is not None and source.listener is not None


def _linger_seconds(source: _Source, expected: bool) -> float:
    """How long to listen to a source without requests; a shared wait goes on anyway."""
    if source.listener is not None and source.listener.is_shared:
        return SHARED_SECONDS
    return _LINGER_SECONDS if expected else 0.0


def _together(at: float, waited: float) -> float:
    """The end of a wait, rounded down so that long waits end together."""
    return at - at % _END_SECONDS if waited > 4 * _END_SECONDS else at


class _Source:
    """One source of wake-ups: the requests that wait for it, the longest waiting first."""

    def __init__(self, name: str, waiters: Waiters) -> None:
        self.name = name
        self.places: dict[Place, None] = {}
        #: A wake-up that arrived while no request waited.
        self.pending: Wakeup | None = None
        #: Replaced at each wake-up.
        self.generation = object()
        self._waiters = waiters
        self._loop = asyncio.get_running_loop()
        self._going: asyncio.TimerHandle | None = None
        self.listener: Listener | None = None

    def notify(self) -> None:
        """Wakes one request, or keeps the wake-up for the next one."""
        self.generation = object()
        wakeup = Wakeup(self)
        if not self.wake(wakeup):
            self.pending = wakeup

    def wake(self, wakeup: Wakeup) -> bool:
        """Wakes the first request that may use the wake-up."""
        for place in self.places:
            if place.is_waiting and place.kind not in wakeup.declined_by:
                place.wake(wakeup)
                return True
        return False

    def keep(self) -> None:
        """Cancels the end of listening: a request waits again."""
        if self._going is not None:
            self._going.cancel()
            self._going = None

    def go(self, seconds: float) -> None:
        """Ends listening after this time: a wake-up that is received without a request is missing elsewhere."""
        self.keep()
        if seconds:
            self._going = self._loop.call_later(seconds, self._waiters.forget, self)
        else:
            self._waiters.forget(self)


class Place:
    """The place of one request while the block runs; a wake-up between two waits is not lost."""

    def __init__(self, waiters: Waiters, sources: tuple[str, ...], kind: Hashable, token: str) -> None:
        self.sources = sources
        self.token = token
        self.kind = (sources, kind)
        self._waiters = waiters
        #: A wake-up, or whether to poll without one.
        self._future: asyncio.Future[Wakeup | bool] | None = None
        self._wakeup: Wakeup | None = None
        self._released = False
        #: Whether the request found a task; if not, its client will probably be back at once.
        self.found = False

    @property
    def is_waiting(self) -> bool:
        """Whether a wake-up would wake it."""
        return self._future is not None and not self._future.done()

    async def __aenter__(self) -> Self:
        if self._waiters.enter(self):
            try:
                await asyncio.sleep(0)  # a new listener listens before the request reads the store
            except BaseException:
                self._waiters.leave(self, linger=False)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waiters.leave(self, linger=not self.found and error is None)
        if error is not None and self._wakeup is not None:
            self._wakeup.pass_on()

    def generations(self) -> tuple[object, ...]:
        """A value that changes with each wake-up of its sources, and while one of them has no listener."""
        return self._waiters.generations(self.sources)

    async def woken(self, timeout_seconds: float) -> bool:
        """Waits; true if the request should read the store. Another call means that the last wake-up was of no use."""
        self._pass_on()
        if self._released or timeout_seconds <= 0:
            return False
        with self._waiters.looking(self) as look_seconds:
            if look_seconds is not None and look_seconds < timeout_seconds:
                outcome = await self._wait(look_seconds, True)
            else:
                outcome = await self._wait(timeout_seconds, False)
        return bool(outcome)

    async def _wait(self, timeout_seconds: float, otherwise: bool) -> Wakeup | bool:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Wakeup | bool] = loop.create_future()
        self._future = future
        timer = loop.call_at(_together(loop.time() + timeout_seconds, timeout_seconds), self._end_wait, otherwise)
        self._waiters.offer_pending(self)
        try:
            self._note(await future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._note(future.result())  # passed on when the block is left
            raise
        finally:
            timer.cancel()
            self._future = None
        return future.result()

    def _note(self, outcome: Wakeup | bool) -> None:
        self._wakeup = outcome if isinstance(outcome, Wakeup) else None

    def wake(self, wakeup: Wakeup) -> None:
        """Ends its wait with this wake-up."""
        self._end_wait(wakeup)

    def release(self) -> None:
        """Ends its wait and all later ones."""
        self._released = True
        self._end_wait(False)

    def _end_wait(self, outcome: Wakeup | bool) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(outcome)

    def _pass_on(self) -> None:
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.declined_by.add(self.kind)
            wakeup.pass_on()
