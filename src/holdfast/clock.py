"""The only module that asks the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is recorded, monotonic time for what is measured here."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never run backwards, for deadlines inside this process."""
        ...


class SystemClock:
    """The machine's clock; a suspended machine still uses up its leases."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since boot, time asleep included where the system can tell."""
        return time.clock_gettime_ns(_DEADLINE_CLOCK) // 1_000_000


#: CLOCK_MONOTONIC stops while a machine is suspended; a lease in the store does not.
_DEADLINE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
