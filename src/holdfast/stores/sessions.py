"""Connections belong to one event loop of one process: made there on first use, and ended with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from typing import Final, Generic, TypeVar

from holdfast.errors import StoreUnavailable

CLOSED: Final = "the store is closed"


class LoopSession:
    """What a link holds for one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._until_loop_ends: AsyncGenerator[None, None] | None = None

    async def end_with_loop(self) -> None:
        """Has the connections closed when the event loop ends, even if nobody closes the link.

        `asyncio.run` and its like end all open async generators first: the one place where a library is told.
        """
        if self._until_loop_ends is None:
            self._until_loop_ends = self._hold()
            await anext(self._until_loop_ends)

    async def close(self) -> None:
        """Lets the calls under way finish, then ends all connections; those who wait for a bell wait no more."""
        await self._end()
        if self._until_loop_ends is not None:
            await self._until_loop_ends.aclose()

    async def _hold(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._end()

    async def _end(self) -> None:
        raise NotImplementedError


Session = TypeVar("Session", bound=LoopSession)


class LoopSessions(Generic[Session]):
    """The sessions of one process, by event loop; never those of a parent process."""

    def __init__(self, make: Callable[[], Session]) -> None:
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, Session] = {}
        self._pid = os.getpid()
        self._left_behind: list[Session] = []
        self.closed = False

    async def get(self) -> Session:
        """The session of the running event loop."""
        session = self.known()
        if session is None:
            if self.closed:
                raise StoreUnavailable(CLOSED)
            self._by_loop = {loop: known for loop, known in self._by_loop.items() if not loop.is_closed()}
            session = self._by_loop[asyncio.get_running_loop()] = self._make()
            await session.end_with_loop()
        return session

    def known(self) -> Session | None:
        """The session of the running event loop, if it has one."""
        if self._pid != os.getpid():
            # Kept, not closed: closing here would meddle with sockets that the parent still uses.
            self._left_behind.extend(self._by_loop.values())
            self._by_loop = {}
            self._pid = os.getpid()
        return self._by_loop.get(asyncio.get_running_loop())

    async def close(self) -> None:
        """Ends all of them, those of other event loops too."""
        self.closed = True
        for loop, session in list(self._by_loop.items()):
            if loop is asyncio.get_running_loop():
                await session.close()
            elif loop.is_running():
                # Not waited for: that loop may itself be waiting, in a sync call, for this very close.
                asyncio.run_coroutine_threadsafe(session.close(), loop)
            # A loop that rests closes its session when it ends.
        self._by_loop.clear()
