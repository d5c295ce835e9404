"""How much happens, counted by the second."""

from __future__ import annotations

from collections import deque

from holdfast.clock import Clock

_WINDOW_S = 60


class Rate:
    """What was counted in the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: deque[list[int]] = deque()  # second, count

    def count(self, number: int) -> None:
        """So many more have happened."""
        second = self._clock.monotonic_ms() // 1000
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += number
        else:
            self._forget(second)
            self._seconds.append([second, number])

    def last_minute(self) -> int:
        """How many that makes."""
        self._forget(self._clock.monotonic_ms() // 1000)
        return sum(number for _, number in self._seconds)

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - _WINDOW_S:
            self._seconds.popleft()
