"""Patience that remembers what went wrong."""

from __future__ import annotations

from holdfast.stores import patience


class Patience(patience.Patience):
    """The time that one call has, and the most telling error so far."""

    def __init__(self, limit_ms: int) -> None:
        super().__init__(limit_ms)
        self._told: BaseException | None = None

    def most_telling(self, error: BaseException) -> BaseException:
        """The error of the last try, or an earlier one if the last says only that time ran out."""
        if self._told is None or not isinstance(error, TimeoutError):
            return error
        return self._told

    async def pause_after(self, error: BaseException) -> None:
        """Sleeps until the next try."""
        if not isinstance(error, TimeoutError):
            self._told = error
        await self.pause()
