"""Floors: from where on each lane may have something to claim.

Claimed rows stay in the index until they are cleaned up, and a snapshot that somebody holds open keeps them there. A
claimer that remembers where it stopped does not walk over them again. What is committed late, below a floor, is found
when floors are forgotten, after a second, or swept up by the owner of the upkeep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

_FORGET_MS: Final = 1_000
_MOST: Final = 200


class Floor(NamedTuple):
    """The last place that was claimed in a lane, while nothing was put back into it."""

    turn: int
    rank: int
    task_id: str


class Floors:
    """What one process remembers of the lanes that it claims from."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._forget_at_ms = 0
        self._floors: dict[int, Floor] = {}

    def columns(self) -> tuple[list[int], list[int], list[int], list[str]]:
        """Lanes, turns, ranks and task_ids, as they are sent along."""
        now_ms = self._monotonic_ms()
        if now_ms >= self._forget_at_ms or len(self._floors) > _MOST:
            self._floors.clear()
            self._forget_at_ms = now_ms + _FORGET_MS
        floors = self._floors.values()
        return (
            list(self._floors),
            [floor.turn for floor in floors],
            [floor.rank for floor in floors],
            [floor.task_id for floor in floors],
        )

    def learn(self, lane: int, floor: Floor) -> None:
        """Remembers how far a lane has been claimed."""
        self._floors[lane] = floor

    def forget(self) -> None:
        """Looks everywhere the next time."""
        self._floors.clear()
