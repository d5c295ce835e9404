"""Ways in which a task waits for what its child does on its behalf."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def in_a_loop() -> bool:
    """Whether this is the thread of a running event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def to_the_end(step: Awaitable[T]) -> T:
    """Sees a step through: cancellations, however many, wait for its end, since its outcome must be known."""
    under_way = asyncio.ensure_future(step)
    interruption: asyncio.CancelledError | None = None
    while not under_way.done():
        try:
            await asyncio.wait([under_way])
        except asyncio.CancelledError as cancelled:
            interruption = cancelled
    result = under_way.result()
    if interruption is not None:
        raise interruption
    return result
