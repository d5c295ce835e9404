"""Partitions that do not answer: found out by callers that can do without them, and not waited for again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from holdfast.errors import HoldfastError, StoreError, StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.stores.sharded.gather import awaited

Answer = TypeVar("Answer")

#: After this long without an answer, a partition is asked whether it answers at all.
_SLOW_SECONDS: Final = 0.1
#: One that does not tell the map within this time either is away; one that tells it is slow, and waited for.
_ANSWER_SECONDS: Final = 0.5
#: One that was away this short a time ago is left out at once, and looked for in the background.
_KNOWN_SECONDS: Final = 2.0


class Absences:
    """What the views of one store know of partitions that are away; `look` is the cheapest question to a partition."""

    def __init__(self, look: Callable[[Store], Awaitable[Any]]) -> None:
        self._look = look
        #: When each was found to be away, and how.
        self._away: dict[int, tuple[float, str]] = {}
        self._looking: dict[int, asyncio.Task[None]] = {}

    async def answer(self, partition: int, store: Store, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to the call; `StoreUnavailable` soon if the partition answers nothing at all."""
        since, why = self._away.get(partition, (0.0, ""))
        if why and monotonic() < since + _KNOWN_SECONDS:
            self._look_again(partition, store, why)
            raise StoreUnavailable(why)
        try:
            answer = await self._while_alive(store, call, slow_seconds=0 if why else _SLOW_SECONDS)
        except StoreUnavailable as error:
            self._away[partition] = monotonic(), str(error)
            raise
        self._away.pop(partition, None)
        return answer

    def _look_again(self, partition: int, store: Store, why: str) -> None:
        if partition not in self._looking:
            look = asyncio.get_running_loop().create_task(self._look_in_background(partition, store, why))
            self._looking[partition] = look
            look.add_done_callback(lambda _: self._looking.pop(partition, None))

    async def _look_in_background(self, partition: int, store: Store, why: str) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._look(store)
        except (TimeoutError, StoreError):
            self._away[partition] = monotonic(), why
        except HoldfastError:
            self._away.pop(partition, None)  # for the next call to meet
        else:
            self._away.pop(partition, None)

    async def _while_alive(self, store: Store, call: Callable[[], Awaitable[Answer]], *, slow_seconds: float) -> Answer:
        asked = asyncio.ensure_future(awaited(call()))
        try:
            await asyncio.wait([asked], timeout=slow_seconds)
            while not asked.done():
                await self._demand_alive(store, asked)
                await asyncio.wait([asked], timeout=_ANSWER_SECONDS)
            return await asked
        finally:
            await _end(asked)

    async def _demand_alive(self, store: Store, asked: asyncio.Future[Any]) -> None:
        look = asyncio.ensure_future(awaited(self._look(store)))
        try:
            await asyncio.wait([asked, look], timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return
            if not look.done():
                raise StoreUnavailable(f"{store.url}: no answer within {_ANSWER_SECONDS:g} s")
            look.result()
        finally:
            await _end(look)


async def _end(call: asyncio.Future[Any]) -> None:
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
