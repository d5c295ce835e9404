"""Bells: a ring wakes one waiter, in whatever process it waits; losing one costs latency, never work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.stores.postgres.failures import TROUBLES
from holdfast.stores.postgres.lines import Line
from holdfast.stores.postgres.listening import Listener
from holdfast.stores.postgres.urls import PostgresSettings
from holdfast.stores.postgres.way import Way

#: However many tasks are enqueued, one event loop sends so few rings: the first at once, the others together.
RING_EVERY_SECONDS: Final = 0.005
_RING_SECONDS: Final = 2.0
_LAST_RING_SECONDS: Final = 1.0


class Bells:
    """The bells of one event loop: one connection to ring, one to listen, each made when first needed."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._ringer = Ringer(settings)
        self._listener = Listener(settings, self._ringer.ring)

    def ring(self, names: Iterable[str]) -> None:
        """Wakes one waiter for each of these bells, soon."""
        self._ringer.ring(names)

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Whether one of these was rung within this time, or within that of a safety poll if nothing can be heard."""
        return await self._listener.wait(names, timeout_ms)

    def doubt(self) -> None:
        """After trouble with the server: makes sure that rings are still heard."""
        self._listener.doubt()

    async def close(self) -> None:
        """Wakes those who wait, and sends what is still to be rung."""
        await self._listener.close()
        await self._ringer.close()


class Ringer:
    """Sends rings after the commit that they tell of, never within it: notifying commits wait for each other."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._way = Way(settings.login, settings)
        self._statement = f"SELECT {settings.schema}.ring(%s::text[])"
        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._line: Line | None = None
        self._closing = asyncio.Event()

    def ring(self, names: Iterable[str]) -> None:
        """Marks these bells."""
        self._unsent.update(names)
        if self._unsent and (self._sending is None or self._sending.done()) and not self._closing.is_set():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Sends what is left, if that goes quickly."""
        self._closing.set()
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending], timeout=_LAST_RING_SECONDS)
            self._sending.cancel()
        if self._unsent:
            await self._send(_LAST_RING_SECONDS)
        if self._line is not None:
            self._line.drop()
            self._line = None

    async def _send_all(self) -> None:
        while self._unsent:
            await self._send(_RING_SECONDS)
            await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(RING_EVERY_SECONDS):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _send(self, seconds: float) -> None:
        names, self._unsent = self._unsent, set()
        try:
            async with asyncio.timeout(seconds):
                if self._line is None or not self._line.is_fit():
                    self._line = await self._way.connect()
                await self._line.ask(self._statement, (sorted(names),))
        except TROUBLES:
            # Not sent again: by the time the server is back, the safety polls have found the tasks.
            self._hang_up()
        except BaseException:
            self._unsent |= names
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.drop()
            self._line = None
