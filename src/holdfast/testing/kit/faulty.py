"""A store that loses calls, loses replies and is slow: seeded, so that a failure can be had again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.stores.decorate import PassingStore

Answer = TypeVar("Answer")
Sleep = Callable[[float], Awaitable[None]]

#: What it takes to open a store, look it over and close it always succeeds.
_SPARED = frozenset({"placement", "probe", "migrate", "close"})


@dataclass(frozen=True)
class Faults:
    """How often each fault strikes, as a share of all calls, and by which seed."""

    seed: int = 0
    #: The call never reaches the store.
    lost_calls: float = 0.0
    #: The store has done it, and the caller hears `StoreUnavailable`.
    lost_replies: float = 0.0
    #: The call waits before it is made, for up to `longest_delay_ms`.
    delays: float = 0.0
    longest_delay_ms: int = 50


def no_faults() -> Faults:
    """A store with these is as good as the one inside."""
    return Faults()


class FaultyStore(PassingStore):
    """Another store behind a bad line; `strike(False)` makes the line good."""

    def __init__(self, inner: Store, faults: Faults, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(inner)
        self._faults = faults
        self._random = Random(faults.seed)  # noqa: S311 - faults need to be repeatable, not secret
        self._sleep = sleep
        self._on = True
        #: How often each fault has struck, by name.
        self.struck = {"lost_calls": 0, "lost_replies": 0, "delays": 0}

    def strike(self, on: bool) -> None:
        """Turns the faults on or off."""
        self._on = on

    async def _pass(self, method: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Passed on, or lost."""
        if method in _SPARED:
            return await call
        if self._strikes("delays", self._faults.delays):
            await self._sleep(self._random.random() * self._faults.longest_delay_ms / 1000)
        if self._strikes("lost_calls", self._faults.lost_calls):
            call.close()
            raise StoreUnavailable(f"{self.url}: the call was lost (on purpose)")
        answer = await call
        if self._strikes("lost_replies", self._faults.lost_replies):
            raise StoreUnavailable(f"{self.url}: the reply was lost (on purpose)")
        return answer

    def _strikes(self, name: str, share: float) -> bool:
        hit = self._on and share > 0 and self._random.random() < share
        self.struck[name] += hit
        return hit
