"""The model's memos."""

from __future__ import annotations

from holdfast.stores.documents import Memo
from holdfast.testing.clock import SteppedClock


class Memos:
    """What is kept, and until when; what is over stays until it is pruned or replaced."""

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self._values: dict[str, tuple[bytes, int]] = {}

    def keep(self, key: str, value: bytes, ttl_ms: int, reason: str) -> Memo:
        """What a store answers, and its effect; `reason` is what is wrong with the claim."""
        if not reason and self.kept(key) is None:
            self._values[key] = value, self._clock.now_ms() + ttl_ms
        return Memo(self.kept(key), reason)

    def kept(self, key: str) -> bytes | None:
        """The value, if its time is not over."""
        value, ends_at_ms = self._values.get(key, (None, 0))
        return value if ends_at_ms > self._clock.now_ms() else None

    def prune(self) -> int:
        """Forgets those whose time is over; how many."""
        over = [key for key in self._values if self.kept(key) is None]
        for key in over:
            del self._values[key]
        return len(over)

    def ends(self) -> list[int]:
        """When the time of each is over."""
        return [ends_at_ms for _, ends_at_ms in self._values.values()]
