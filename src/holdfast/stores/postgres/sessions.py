"""What a database holds for one event loop: connections, the way to the primary, the bells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.errors import StoreUnavailable
from holdfast.stores.postgres.bells import Bells
from holdfast.stores.postgres.lines import Line
from holdfast.stores.postgres.standbys import Standbys
from holdfast.stores.postgres.urls import PostgresSettings
from holdfast.stores.postgres.way import Way
from holdfast.stores.sessions import CLOSED, LoopSession

_CLOSE_SECONDS: Final = 5.0
#: Connections that are never taken by calls which wait for a standby, so that leases can still be extended.
_ALWAYS_FREE: Final = 2


class Session(LoopSession):
    """The connections of one event loop; they end with it."""

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__()
        self.way = Way(settings.login, settings)
        self.bells = Bells(settings)
        self.standbys = Standbys(self, max(1, settings.connections - _ALWAYS_FREE))
        self._room = asyncio.Semaphore(settings.connections)
        self._idle: list[Line] = []
        self._lent: set[Line] = set()
        self._closed = False

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """A connection for one exchange; not used again if it is not fit for it."""
        async with self._room:
            line = await self._take()
            self._lent.add(line)
            try:
                yield line
            finally:
                self._lent.discard(line)
                self._give_back(line)

    def forget(self) -> None:
        """Drops what is idle, and looks for the primary again."""
        self._drop_idle()
        self.way.doubt()
        self.bells.doubt()

    async def _end(self) -> None:
        self._closed = True
        await self.bells.close()
        deadline = self.loop.time() + _CLOSE_SECONDS
        while self._lent and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self._drop_idle()
        for line in list(self._lent):
            line.drop()

    async def _take(self) -> Line:
        while self._idle:
            # The one used last: the others may grow old and be closed by the server.
            line = self._idle.pop()
            if line.is_fit():
                return line
            line.drop()
        if self._closed:
            raise StoreUnavailable(CLOSED)
        return await self.way.connect()

    def _give_back(self, line: Line) -> None:
        if self._closed or not line.is_at_rest():
            line.drop()
        else:
            self._idle.append(line)

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().drop()
