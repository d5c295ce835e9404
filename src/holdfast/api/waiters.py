"""Everybody who waits at this gateway for work, behind one listener a queue.

However many clients wait for a queue, the store sees one `wait`. A ring wakes the one who has waited longest; one who
goes away with it, or finds nothing that it can run, passes it on. A ring is only a hint, here too.

However many queues are waited for, there are `listening.MAX_WAITS` at most. Who waits for a queue for which there is no
room looks by itself, once a second, and less often when more do so than `_LOOKS_A_SECOND`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from holdfast.api.listening import SHARED_SECONDS, Listener, Listeners
from holdfast.stores.contract import Store

#: A queue for which nobody waits any more is listened to for this long if the last one left with nothing: most
#: come back at once. A ring that comes meanwhile is kept for them; if they do not come, those who wait elsewhere miss
#: it until the upkeep rings again.
_LINGER_SECONDS: Final = 0.02
#: Without a listener: how often one looks, and how often all of them together.
_LOOK_SECONDS: Final = 1.0
_LOOKS_A_SECOND: Final = 200
#: Long waits end together, this often: one by one, two thousand of them would wake an idle process all the time, and
#: each would cost three times as much.
_END_SECONDS: Final = 0.25


class Ring:
    """One ring on its way, and the kinds of waiters that have heard it in vain."""

    __slots__ = ("bell", "heard_by")

    def __init__(self, bell: _Bell) -> None:
        self.bell = bell
        self.heard_by: set[Hashable] = set()

    def pass_on(self) -> None:
        """Goes to the next one whom it may help; if there is nobody, it is over."""
        self.bell.wake(self)


class Waiters:
    """The bells of a store, each with those who wait for it."""

    def __init__(self, store: Store) -> None:
        self._bells: dict[str, _Bell] = {}
        self._listeners = Listeners(store)
        #: How many in line look by themselves.
        self._looking = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many places are taken."""
        return len({place for bell in self._bells.values() for place in bell.places})

    @property
    def listening(self) -> int:
        """How many calls to the store that takes."""
        return len(self._listeners)

    def place(self, bells: Sequence[str], kind: Hashable = None) -> Place:
        """A place in the line of each of these bells; a ring that is in vain for one of a kind is so for all of it."""
        return Place(self, tuple(dict.fromkeys(bells)), kind)

    def release_all(self) -> None:
        """Nobody waits any longer, now and from now on."""
        self._closed = True
        for bell in self._bells.values():
            for place in bell.places:
                place.release()

    async def close(self) -> None:
        """Ends the listeners."""
        self.release_all()
        await self._listeners.close()

    # -- for places ------------------------------------------------------------------------------------------

    def enter(self, place: Place) -> bool:
        """Has the bells listened to for this place; whether one of them was not before."""
        if self._closed:
            place.release()
            return False
        is_new = False
        for name in place.bells:
            bell = self._bells.get(name)
            if bell is None:
                bell = self._bells[name] = _Bell(name, self)
            bell.stay()
            bell.places[place] = None
            if bell.listener is None:
                bell.listener = self._listeners.listen(bell)
                is_new = is_new or bell.listener is not None
        return is_new

    def line_up(self, place: Place) -> None:
        """Gives the place a ring that nobody was there for, if there is one."""
        for name in place.bells:
            ring, self._bells[name].unheard = self._bells[name].unheard, None
            if ring is not None:
                place.wake(ring)
                return

    def leave(self, place: Place, *, linger: bool) -> None:
        """Frees the place at once."""
        for name in place.bells:
            bell = self._bells.get(name)
            if bell is not None:
                bell.places.pop(place, None)
                if not bell.places:
                    bell.go(0.0 if self._closed else _linger_seconds(bell, linger))

    def heard(self, names: Sequence[str]) -> tuple[object, ...]:
        """A value that changes when one of these bells is rung, or was not listened to."""
        return tuple(self._bells[name].heard if self._is_listened_to(name) else object() for name in names)

    @contextmanager
    def looking(self, place: Place) -> Iterator[float | None]:
        """After how many seconds this place should look by itself, None for never; it is in line during the block."""
        if all(map(self._is_listened_to, place.bells)):
            yield None
            return
        self._looking += 1
        try:
            yield max(_LOOK_SECONDS, self._looking / _LOOKS_A_SECOND)
        finally:
            self._looking -= 1

    def forget(self, bell: _Bell) -> None:
        """Listens to it no more."""
        if bell.listener is not None:
            self._listeners.leave(bell, bell.listener)
        self._bells.pop(bell.name, None)

    def _is_listened_to(self, name: str) -> bool:
        bell = self._bells.get(name)
        return bell is not None and bell.listener is not None


def _linger_seconds(bell: _Bell, expected: bool) -> float:
    """How long to listen to a bell for which nobody waits; a wait that is shared goes on anyway."""
    if bell.listener is not None and bell.listener.is_shared:
        return SHARED_SECONDS
    return _LINGER_SECONDS if expected else 0.0


def _together(at: float, waited: float) -> float:
    """When to end a wait that would end then: a bit sooner, with others."""
    return at - at % _END_SECONDS if waited > 4 * _END_SECONDS else at


class _Bell:
    """One bell: who waits for it, the longest first."""

    def __init__(self, name: str, waiters: Waiters) -> None:
        self.name = name
        self.places: dict[Place, None] = {}
        #: A ring that came while nobody was in line for it.
        self.unheard: Ring | None = None
        #: Another one after each ring.
        self.heard = object()
        self._waiters = waiters
        self._loop = asyncio.get_running_loop()
        self._going: asyncio.TimerHandle | None = None
        self.listener: Listener | None = None

    def ring(self) -> None:
        """Wakes one, or is kept for the next one who comes."""
        self.heard = object()
        ring = Ring(self)
        if not self.wake(ring):
            self.unheard = ring

    def wake(self, ring: Ring) -> bool:
        """Wakes the first one whom the ring may help."""
        for place in self.places:
            if place.in_line and place.kind not in ring.heard_by:
                place.wake(ring)
                return True
        return False

    def stay(self) -> None:
        """Somebody waits again."""
        if self._going is not None:
            self._going.cancel()
            self._going = None

    def go(self, seconds: float) -> None:
        """Nobody waits: a ring that is heard now is missing elsewhere."""
        self.stay()
        if seconds:
            self._going = self._loop.call_later(seconds, self._waiters.forget, self)
        else:
            self._waiters.forget(self)


class Place:
    """One who waits, while the block runs: what comes between two waits is not missed."""

    def __init__(self, waiters: Waiters, bells: tuple[str, ...], kind: Hashable) -> None:
        self.bells = bells
        self.kind = (bells, kind)
        self._waiters = waiters
        #: A ring, or whether to look without one.
        self._future: asyncio.Future[Ring | bool] | None = None
        self._ring: Ring | None = None
        self._released = False
        #: What the caller has come to; others are listened for on its behalf if it was nothing.
        self.found = False

    @property
    def in_line(self) -> bool:
        """Whether a ring would wake it."""
        return self._future is not None and not self._future.done()

    async def __aenter__(self) -> Self:
        if self._waiters.enter(self):
            try:
                await asyncio.sleep(0)  # a new listener listens before the caller looks: what comes after that rings
            except BaseException:
                self._waiters.leave(self, linger=False)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waiters.leave(self, linger=not self.found and error is None)
        if error is not None and self._ring is not None:
            self._ring.pass_on()

    def heard(self) -> tuple[object, ...]:
        """A value that changes when one of its bells is rung, or was not listened to."""
        return self._waiters.heard(self.bells)

    async def rung(self, timeout_seconds: float) -> bool:
        """Whether it should look, before the time is over. Asking again says that the last ring was in vain."""
        self._pass_on()
        if self._released or timeout_seconds <= 0:
            return False
        with self._waiters.looking(self) as look_seconds:
            if look_seconds is not None and look_seconds < timeout_seconds:
                heard = await self._hear(look_seconds, True)
            else:
                heard = await self._hear(timeout_seconds, False)
        return bool(heard)

    async def _hear(self, timeout_seconds: float, otherwise: bool) -> Ring | bool:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ring | bool] = loop.create_future()
        self._future = future
        timer = loop.call_at(_together(loop.time() + timeout_seconds, timeout_seconds), self._end_wait, otherwise)
        self._waiters.line_up(self)
        try:
            self._note(await future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._note(future.result())  # handed on when the block is left
            raise
        finally:
            timer.cancel()
            self._future = None
        return future.result()

    def _note(self, heard: Ring | bool) -> None:
        self._ring = heard if isinstance(heard, Ring) else None

    def wake(self, ring: Ring) -> None:
        """Hands it a ring."""
        self._end_wait(ring)

    def release(self) -> None:
        """It need not wait any longer."""
        self._released = True
        self._end_wait(False)

    def _end_wait(self, heard: Ring | bool) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(heard)

    def _pass_on(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.heard_by.add(self.kind)
            ring.pass_on()
