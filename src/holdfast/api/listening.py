"""The waits at the store behind the bells of a gateway: so many and no more, whatever anybody asks for.

While there are fewer bells than `MAX_WAITS`, each has a wait of its own. The next ones share, up to `MAX_SHARING` to a
wait: what one of them is rung for is a ring for all of them, and one that joins is heard after `SHARED_SECONDS` at the
latest. Still more bells get no wait at all: who waits for one of them has to look by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final, Protocol

from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.api")

#: A wait may be a connection to the store.
MAX_WAITS: Final = 256
#: And a bell two descriptors.
MAX_SHARING: Final = 4
#: A wait of the store takes this long at most.
ALONE_SECONDS: Final = 15.0
SHARED_SECONDS: Final = 1.0
_PAUSE_AFTER_ERROR_SECONDS: Final = 1.0


class Bell(Protocol):
    """What is listened to."""

    name: str

    def ring(self) -> None:
        """It was rung, or may have been."""
        ...


class Listeners:
    """All that listen at one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: dict[Listener, None] = {}
        self._bells = 0
        #: Those of listeners that have ended a moment ago, too.
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def listen(self, bell: Bell) -> Listener | None:
        """Who listens to this bell from now on; None if there are too many."""
        if len(self._listeners) < MAX_WAITS:
            listener = Listener(self._store, bell, self._tasks)
            self._listeners[listener] = None
        elif self._bells < MAX_WAITS * MAX_SHARING:
            listener = min(self._listeners, key=len)
            listener.join(bell)
        else:
            return None
        self._bells += 1
        return listener

    def leave(self, bell: Bell, listener: Listener) -> None:
        """It need not be listened to any longer."""
        self._bells -= 1
        if listener.leave(bell):
            del self._listeners[listener]

    async def close(self) -> None:
        """Ends them all."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Listener:
    """One wait of the store after the other, for one bell or for a few."""

    def __init__(self, store: Store, bell: Bell, tasks: set[asyncio.Task[None]]) -> None:
        self._store = store
        self._tasks = tasks
        self._bells = {bell: None}
        #: Bells for which rings may have gone unheard until the next wait.
        self._late: list[Bell] = []
        #: Once they are more than one, others may join at any time.
        self.is_shared = False
        self._task = self._begin()

    def __len__(self) -> int:
        return len(self._bells)

    def join(self, bell: Bell) -> None:
        """Listens to one more, with its next wait."""
        self._bells[bell] = None
        self._late.append(bell)
        if not self.is_shared:
            self.is_shared = True
            self._task.cancel()
            self._late = list(self._bells)
            self._task = self._begin()

    def leave(self, bell: Bell) -> bool:
        """Listens to one less; whether it has come to its end with that."""
        del self._bells[bell]
        if not self._bells:
            self._task.cancel()
        return not self._bells

    def _begin(self) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._listen())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            bells, late, self._late = list(self._bells), self._late, []
            self._ring(late)  # who is woken looks after the wait below has begun
            seconds = SHARED_SECONDS if self.is_shared else ALONE_SECONDS
            until = now() + seconds
            try:
                rung = await self._store.wait([bell.name for bell in bells], round(seconds * 1000))
            except HoldfastError as error:
                log.warning("listening for queue %s: %s", bells[0].name, error)
                await asyncio.sleep(_PAUSE_AFTER_ERROR_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311  (jitter)
                rung = False
            if rung or now() < until:  # back too early: rings may have gone unheard
                self._ring(bells)

    def _ring(self, bells: list[Bell]) -> None:
        for bell in bells:
            if bell in self._bells:
                bell.ring()
