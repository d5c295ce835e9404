"""Long work in parts: whoever else is at this gateway has his turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

A = TypeVar("A")
R = TypeVar("R")

#: What is worked on in one go; smaller pieces would make the work longer, and the others hardly faster.
PART_BYTES: Final = 64 * 1024


class Turns:
    """The turns of the others during one piece of work."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    async def work(self, size_bytes: int, function: Callable[[A], R], argument: A) -> R:
        """What the function gives, which works on so much; in a thread if that is too much for one go."""
        if size_bytes >= PART_BYTES:
            return await asyncio.to_thread(function, argument)
        result = function(argument)
        await self.after(size_bytes)
        return result

    async def after(self, size_bytes: int) -> None:
        """Called after so much work; lets the others go on if it is enough for now."""
        self._done += size_bytes
        if self._done >= PART_BYTES:
            self._done = 0
            await asyncio.sleep(0)
