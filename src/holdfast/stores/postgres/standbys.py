"""Exchanges that may have to wait for a standby: never broken off halfway, and never too many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.stores.postgres.lines import Line, Unconfirmed
from holdfast.stores.postgres.patience import Patience

if TYPE_CHECKING:
    from holdfast.stores.postgres.sessions import Session

T = TypeVar("T")

#: So old may the knowledge be which backends wait.
_KNOWN_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 1.0
_WAITING: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND wait_event = 'SyncRep'
"""


class Standbys:
    """The waiting of one event loop.

    A backend that waits for a standby goes on even if we close the connection. So what is not confirmed in time is left
    behind with its connection, which bounds how many there can be; the rest of the connections stay free for others.
    """

    def __init__(self, session: Session, room: int) -> None:
        self._session = session
        self._room = asyncio.Semaphore(room)
        self._left_behind: set[asyncio.Task[object]] = set()
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        self._backends: frozenset[int] = frozenset()

    async def confirm(self, exchange: Callable[[Line], Awaitable[T]], patience: Patience) -> T:
        """One try; longer than a try if the server says that it waits for a standby, until the patience is over."""
        lines: list[Line] = []
        trying = asyncio.create_task(self._try(exchange, lines))
        try:
            while not (await asyncio.wait([trying], timeout=patience.for_a_try()))[0]:
                if not await self.are_awaited(lines):
                    raise TimeoutError
                if patience.is_over():
                    raise Unconfirmed("no standby has confirmed it in time")
            return trying.result()
        except BaseException as error:
            self._leave(trying, ended=not (lines and isinstance(error, Unconfirmed)))
            raise

    async def are_awaited(self, lines: list[Line]) -> bool:
        """Whether one of our statements (on this connection, if we know it) is kept from its end by a standby."""
        async with self._looking:
            if self._session.loop.time() - self._looked_at > _KNOWN_SECONDS:
                self._backends = await self._look()
                self._looked_at = self._session.loop.time()
        if lines and not lines[0].pooled:
            return lines[0].info.backend_pid in self._backends
        return bool(self._backends)

    async def _try(self, exchange: Callable[[Line], Awaitable[T]], lines: list[Line]) -> T:
        async with self._room, self._session.line() as line:
            lines.append(line)
            return await exchange(line)

    async def _look(self) -> frozenset[int]:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                line = await self._session.way.connect()
                try:
                    return frozenset(backend for (backend,) in await line.ask(_WAITING))
                finally:
                    line.drop()
        except Exception:  # noqa: BLE001  (who cannot be asked does not say that it waits)
            return frozenset()

    def _leave(self, trying: asyncio.Task[T], *, ended: bool) -> None:
        self._left_behind.add(trying)
        trying.add_done_callback(self._forget)
        if ended:
            trying.cancel()

    def _forget(self, trying: asyncio.Task[T]) -> None:
        self._left_behind.discard(trying)
        if not trying.cancelled():
            trying.exception()  # nobody is left who wants to know
