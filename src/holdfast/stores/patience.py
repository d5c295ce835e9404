"""How long to insist, how long to try, how long to pause in between."""

from __future__ import annotations

import asyncio
import random
from typing import Final

#: No try waits longer for an answer.
TRY_SECONDS: Final = 5.0
_SHORTEST_TRY_SECONDS: Final = 0.2
_FIRST_PAUSE_SECONDS: Final = 0.025
_LONGEST_PAUSE_SECONDS: Final = 0.5


class Patience:
    """The time that one call has, and what of it is left."""

    def __init__(self, limit_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limit_ms / 1000
        self._pauses = 0

    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - self._loop.time()

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.left() <= 0

    def for_a_try(self) -> float:
        """Seconds for the next try: half of what is left, so that a server that froze leaves time for another one."""
        return min(TRY_SECONDS, max(self.left() / 2, _SHORTEST_TRY_SECONDS))

    async def pause(self) -> None:
        """Sleeps longer each time, and never as long as the others who failed at the same moment."""
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**self._pauses)
        self._pauses += 1
        await asyncio.sleep(min(random.uniform(0, longest), max(self.left(), 0)))  # noqa: S311
