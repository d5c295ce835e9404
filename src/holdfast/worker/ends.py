"""Tells the supervisor at once which runs are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.worker.messages import Ended


class Ends:
    """Says so before the settlement: while the store is away, nobody is to be killed for a run that has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[Ended], Awaitable[None]]) -> None:
        self._loop = loop
        self._tell = tell
        self._keys: list[int] = []
        self._telling: asyncio.Task[None] | None = None

    def note(self, key: int) -> None:
        """A run is over; those of one turn of the event loop are told in one message."""
        self._keys.append(key)
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        while self._keys:
            keys, self._keys = self._keys, []
            await self._tell(Ended(keys))
        self._telling = None
