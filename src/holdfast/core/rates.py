"""How often something may happen."""

from __future__ import annotations

import re
from typing import Final, Self

import msgspec

from holdfast.errors import BadOption

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])", re.ASCII)


class Rate(msgspec.Struct, frozen=True):
    """So many times in so many seconds, spread as the caller likes."""

    count: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `100/s`, `600/m`, `10/h`."""
        found = _RATE.fullmatch(text)
        if found is None:
            raise BadOption(f"rate: {text!r:.80} is refused: write 100/s, 600/m or 10/h")
        return cls(int(found[1]), _SECONDS[found[2]])

    def __str__(self) -> str:
        units = {seconds: unit for unit, seconds in _SECONDS.items()}
        return f"{self.count}/{units[self.seconds]}"


class Bucket:
    """What is left of a rate: full at first, and filled up again evenly."""

    __slots__ = ("_at_ms", "_left", "rate")

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate = rate
        #: In parts of which one time costs as many as the rate has milliseconds: whole numbers do not drift.
        self._left = rate.count * rate.seconds * 1_000
        self._at_ms = now_ms

    def take(self, now_ms: int) -> int:
        """0 if one was left and is taken; else the number of ms after which there is one."""
        cost = self.rate.seconds * 1_000
        passed_ms = max(0, now_ms - self._at_ms)
        self._left = min(self.rate.count * cost, self._left + passed_ms * self.rate.count)
        self._at_ms = max(now_ms, self._at_ms)
        if self._left >= cost:
            self._left -= cost
            return 0
        return -((self._left - cost) // self.rate.count)
