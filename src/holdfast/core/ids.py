"""Task ids: made by the caller, ordered by time, carrying their partition.

32 lower-case hex digits: 12 of milliseconds, 4 of partition, 4 of a counter that keeps the ids of one
producer in order within a millisecond, and 12 of randomness. The id of a schedule's task follows from its name and
its occurrence: it has the time of the occurrence, the counter `ffff`, which no producer uses, and a hash of 12 digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from holdfast.errors import UnknownTask

_TASK_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_RANDOM_BYTES = 6
MAX_PARTITION = 0xFFFF
_OF_OCCURRENCE: Final = 0xFFFF


class IdSource:
    """Makes task ids from a clock and a source of randomness that are handed in.

    No randomness is kept between calls: a pool would be copied by fork, and two processes would then
    give two tasks the same id.
    """

    def __init__(self, now_ms: Callable[[], int], random_bytes: Callable[[int], bytes]) -> None:
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._last_ms = 0
        self._counter = 0

    def use_clock(self, now_ms: Callable[[], int]) -> None:
        """Takes the time from another clock from now on, be it behind the one before: for tests."""
        self._now_ms, self._last_ms = now_ms, 0

    def task_id(self, partition: int = 0) -> str:
        """A new task id in this partition."""
        now_ms = self._now_ms()
        if now_ms > self._last_ms:
            self._last_ms, self._counter = now_ms, 0
        else:
            self._counter = (self._counter + 1) % _OF_OCCURRENCE
        return f"{self._last_ms:012x}{partition:04x}{self._counter:04x}{self._random_bytes(_RANDOM_BYTES).hex()}"

    def claim_id(self) -> str:
        """A new id for one reserve call: 128 random bits."""
        return self._random_bytes(16).hex()


def occurrence_id(name: str, occurrence_ms: int, partition: int) -> str:
    """The task_id of one occurrence of the schedule of this name, the same on every node."""
    from hashlib import sha256

    digest = sha256(f"{name}@{occurrence_ms}".encode()).digest()
    return f"{occurrence_ms:012x}{partition:04x}{_OF_OCCURRENCE:04x}{digest[:_RANDOM_BYTES].hex()}"


def is_of_occurrence(task_id: str) -> bool:
    """Whether only a schedule can make a task of this id."""
    return int(check_task_id(task_id)[16:20], 16) == _OF_OCCURRENCE


def partition_of(task_id: str) -> int:
    """The partition that this id was made for."""
    return int(check_task_id(task_id)[12:16], 16)


def created_at_ms(task_id: str) -> int:
    """When this id was made, by its producer's clock."""
    return int(check_task_id(task_id)[:12], 16)


def check_task_id(task_id: str) -> str:
    """The id itself, or `UnknownTask` when it cannot be one."""
    if not isinstance(task_id, str) or not _TASK_ID.fullmatch(task_id):
        shown = repr(task_id)[:60]
        raise UnknownTask(f"{shown} is not a task_id: a task_id is 32 hex digits, as printed by enqueue")
    return task_id


# -- tokens --------------------------------------------------------------------------------------------------


def claim_token(epoch: int, delivery: int, claim_id: str) -> str:
    """The token of one claim."""
    return f"{epoch}.{delivery}.{claim_id}"


def fencing_token(token: str) -> int:
    """A number that grows with every claim of the task: hand it to systems that refuse older ones."""
    return int(token.split(".", 2)[1])


def epoch_of(token: str) -> int:
    """The epoch under which the claim was given."""
    return int(token.split(".", 1)[0])
