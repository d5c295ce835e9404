"""The waits at the store behind all clients that wait for a wake-up: bounded, whatever clients ask for.

While there are fewer queues than `MAX_WAITS`, each has a wait of its own. Further queues share, up to `MAX_SHARING` to
a wait: a wake-up for one of them wakes all of them, and a queue that joins is listened to after `SHARED_SECONDS` at the
latest. Beyond that a queue gets no wait at all: its clients have to poll.

One token has at most `WAITS_TO_FREE` times as many of the waits as are free, and its further queues share those: tokens
that name thousands of queues, 192 waits for the first and 48 for the second, leave waits to others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final, Protocol

from holdfast.errors import HoldfastError
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.server")

#: A wait may be a connection to the store.
MAX_WAITS: Final = 256
WAITS_TO_FREE: Final = 3
#: A source may be two descriptors.
MAX_SHARING: Final = 6
#: A wait of the store takes this long at most.
ALONE_SECONDS: Final = 15.0
SHARED_SECONDS: Final = 1.0
_PAUSE_AFTER_ERROR_SECONDS: Final = 1.0


class Source(Protocol):
    """A source of wake-ups: a queue, or maintenance."""

    name: str

    def notify(self) -> None:
        """A wake-up has arrived, or may have been missed."""
        ...


class Listeners:
    """The listeners at one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Each with the token that it was made for.
        self._listeners: dict[Listener, str] = {}
        self._of_token: dict[str, dict[Listener, None]] = {}
        #: Those of listeners that have ended a moment ago, too.
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def listen(self, source: Source, token: str = "") -> Listener | None:
        """The listener of this source from now on, charged to this token; None if there are too many."""
        own = self._of_token.get(token, {})
        free = MAX_WAITS - len(self._listeners)
        if len(own) < WAITS_TO_FREE * free:
            listener = Listener(self._store, source, self._tasks)
            self._listeners[listener] = token
            self._of_token.setdefault(token, {})[listener] = None
            return listener
        # It shares a wait of its own token, or of another one if it has none.
        listener = min(own or self._listeners, key=len)
        if len(listener) >= MAX_SHARING:
            return None
        listener.join(source)
        return listener

    def leave(self, source: Source, listener: Listener) -> None:
        """Ends listening to this source."""
        if listener.leave(source):
            token = self._listeners.pop(listener)
            own = self._of_token[token]
            del own[listener]
            if not own:
                del self._of_token[token]

    async def close(self) -> None:
        """Ends all of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Listener:
    """One wait of the store after the other, for one source or for a few."""

    def __init__(self, store: Store, source: Source, tasks: set[asyncio.Task[None]]) -> None:
        self._store = store
        self._tasks = tasks
        self._sources = {source: None}
        #: Sources whose wake-ups may have been missed before the next wait.
        self._late: list[Source] = []
        #: Whether there was more than one source: others may join at any time.
        self.is_shared = False
        self._task = self._begin()

    def __len__(self) -> int:
        return len(self._sources)

    def join(self, source: Source) -> None:
        """Adds a source to its next wait."""
        self._sources[source] = None
        self._late.append(source)
        if not self.is_shared:
            self.is_shared = True
            self._task.cancel()
            self._late = list(self._sources)
            self._task = self._begin()

    def leave(self, source: Source) -> bool:
        """Removes a source; true if it was the last one, which ends the listener."""
        del self._sources[source]
        if not self._sources:
            self._task.cancel()
        return not self._sources

    def _begin(self) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._listen())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            sources, late, self._late = list(self._sources), self._late, []
            self._notify(late)  # a woken request reads the store after the wait below has begun
            seconds = SHARED_SECONDS if self.is_shared else ALONE_SECONDS
            until = now() + seconds
            try:
                woken = await self._store.wait([source.name for source in sources], round(seconds * 1000))
            except HoldfastError as error:
                log.warning("listening for queue %s: %s", sources[0].name, error)
                await asyncio.sleep(_PAUSE_AFTER_ERROR_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311  (jitter)
                woken = False
            if woken or now() < until:  # back too early: wake-ups may have been missed
                self._notify(sources)

    def _notify(self, sources: list[Source]) -> None:
        for source in sources:
            if source in self._sources:
                source.notify()
