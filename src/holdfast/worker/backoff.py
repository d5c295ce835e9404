"""Waiting longer after each failure, never in step with others."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.errors import BadUrl, HoldfastError, NotAllowed

_log = logging.getLogger("holdfast.worker")
T = TypeVar("T")


class Backoff:
    """Delays that double from `base_ms` to `cap_ms`, each drawn from its upper half."""

    def __init__(self, base_ms: int = 100, cap_ms: int = 5_000, draw: Callable[[], float] = random.random) -> None:
        self._base_ms = base_ms
        self._cap_ms = cap_ms
        self._draw = draw
        self.failures = 0

    def next_s(self) -> float:
        """How long to wait now, in seconds."""
        longest_ms = min(self._base_ms << min(self.failures, 30), self._cap_ms)
        self.failures += 1
        return longest_ms * (0.5 + 0.5 * self._draw()) / 1000

    def reset(self) -> None:
        """The next failure is a first one again."""
        self.failures = 0


def may_pass(error: HoldfastError) -> bool:
    """Whether a store that has answered this worker before may answer it again.

    A login, a permission or a file that was good when the worker started can be refused for a while.
    """
    return error.retryable or isinstance(error, (BadUrl, NotAllowed))


async def persistently(call: Callable[[], Awaitable[T]], what: str, backoff: Backoff | None = None) -> T:
    """The answer of a store call, repeated through an outage; errors that a repeat cannot fix are raised."""
    backoff = backoff or Backoff()
    while True:
        try:
            answer = await call()
        except HoldfastError as error:
            if not may_pass(error):
                raise
            if not backoff.failures:
                _log.warning("%s: the store does not answer, trying again: %s", what, error)
            await asyncio.sleep(backoff.next_s())
        else:
            if backoff.failures:
                _log.warning("%s: the store answers again after %d tries", what, backoff.failures)
                backoff.reset()
            return answer
