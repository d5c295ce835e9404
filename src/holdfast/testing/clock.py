"""A clock that stands still until it is told to go on."""

from __future__ import annotations

from typing import Final

#: Some day in 2027: far enough from zero to catch seconds taken for milliseconds.
START_MS: Final = 1_800_000_000_000


class SteppedClock:
    """Wall and monotonic time that move only by `advance`; `step` sets the wall clock alone."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms
        self._passed_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._start_ms + self._passed_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since this clock was made."""
        return self._passed_ms

    def step(self, milliseconds: int) -> None:
        """Sets the wall clock forward, or back, as an operator does."""
        self._start_ms += milliseconds

    def advance(self, milliseconds: int) -> None:
        """Lets this much time pass at once."""
        self._passed_ms += milliseconds
