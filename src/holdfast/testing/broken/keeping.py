"""Bugs of values under keys."""

from __future__ import annotations

import msgspec

from holdfast.core.task import Hold
from holdfast.stores.contract import Kept, Retention, Store
from holdfast.testing.broken.base import BrokenStore
from holdfast.testing.clock import SteppedClock


class KeepOverwrites(BrokenStore):
    """The last value under a key wins: a step that was done twice changes its result."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._last: dict[str, bytes] = {}

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Whatever is there."""
        answer = await self.inner.keep(key, value, ttl_ms, hold)
        if answer.reason:
            return answer
        self._last[key] = value
        return Kept(value)

    async def kept(self, key: str) -> bytes | None:
        """The last one, for as long as the first one is kept."""
        found = await self.inner.kept(key)
        return found if found is None else self._last.get(key, found)


class KeepTellsOwnValue(BrokenStore):
    """Whoever comes second is told that his own value was kept."""

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """As if it were the first."""
        answer = await self.inner.keep(key, value, ttl_ms, hold)
        return answer if answer.value is None else msgspec.structs.replace(answer, value=value)


class KeepIgnoresTheClaim(BrokenStore):
    """A worker that has lost its claim can keep a value."""

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Without a look at the claim."""
        del hold
        return await self.inner.keep(key, value, ttl_ms, None)


class RepeatKeepsLonger(BrokenStore):
    """Every repeat gives the value its whole time again."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._until: dict[str, tuple[bytes, int]] = {}

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """From now on."""
        answer = await self.inner.keep(key, value, ttl_ms, hold)
        if answer.value is not None and not answer.reason:
            self._until[key] = answer.value, self.clock.now_ms() + ttl_ms
        return answer

    async def kept(self, key: str) -> bytes | None:
        """Until the time of the last repeat is over."""
        value, until_ms = self._until.get(key, (None, 0))
        return await self.inner.kept(key) or (value if until_ms > self.clock.now_ms() else None)


class KeptUntilPruned(BrokenStore):
    """A value whose time is over is given out until it happens to be pruned."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._values: dict[str, bytes] = {}

    async def kept(self, key: str) -> bytes | None:
        """Without a look at the time."""
        found = await self.inner.kept(key)
        if found is not None:
            self._values[key] = found
        return self._values.get(key)

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Now they are gone."""
        self._values.clear()
        return await self.inner.prune(epoch, retention, limit)


class KeptForEver(BrokenStore):
    """Values whose time is over are not deleted."""

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """For a very long time."""
        return await self.inner.keep(key, value, ttl_ms + (1 << 40), hold)
