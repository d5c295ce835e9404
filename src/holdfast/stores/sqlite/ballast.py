"""Room kept back for settlements and maintenance: a full disk must stop new tasks, never the end of running ones."""

from __future__ import annotations

import os
import shutil
import time
from enum import IntEnum
from pathlib import Path

#: Enough for many thousands of settlements, and then for maintenance.
BALLAST_BYTES = 48 * 1024 * 1024
#: On a small disk, at most this part of it.
_SHARE_OF_DISK = 8
#: This part is given up last, and for maintenance only: before tasks can be deleted, what is in the log must be moved
#: into the database, which may grow by as much.
_SHARE_FOR_MAINTENANCE = 2
#: The longest log, as a part of that: the rest is for the deletion itself.
_LOG_SHARE = 2 / 3
#: How long a look that found it whole is believed: another process may have given it up since.
_BELIEVED_SECONDS = 0.05
#: Where room can only be taken by writing, this much is written at once.
_CHUNK_BYTES = 1024 * 1024


class Use(IntEnum):
    """What a call needs room for; on a full disk the higher ones go first."""

    NEW_TASKS = 0
    SETTLEMENTS = 1
    MAINTENANCE = 2


class Ballast:
    """Two files of zeros beside the database that are given up when the disk is full, one after the other."""

    def __init__(self, database: str) -> None:
        #: The first is there for settlements. Without it no new tasks are taken.
        self._path, self._last = Path(database + "-ballast"), Path(database + "-ballast-last")
        self._in_memory = not database
        #: When it was last seen whole, by the monotonic clock.
        self._seen_whole: float | None = None

    @property
    def size(self) -> int:
        """How much room is to be kept back, in bytes."""
        if self._in_memory:
            return BALLAST_BYTES
        return min(BALLAST_BYTES, shutil.disk_usage(self._path.parent).total // _SHARE_OF_DISK)

    @property
    def longest_log(self) -> int:
        """The largest log, in bytes, that maintenance can still cope with on a full disk."""
        return int(self.size // _SHARE_FOR_MAINTENANCE * _LOG_SHARE)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is given up, as far as is known."""
        if self._in_memory:
            return True
        now = time.monotonic()
        if self._seen_whole is None or now - self._seen_whole > _BELIEVED_SECONDS:
            self._seen_whole = now if self._path.exists() else None
        return self._seen_whole is not None

    def give_up(self, use: Use) -> None:
        """Frees the room that such a call may have."""
        if self._in_memory:
            return
        self._seen_whole = None
        self._path.unlink(missing_ok=True)
        if use is Use.MAINTENANCE:
            self._last.unlink(missing_ok=True)

    def restore(self) -> bool:
        """Keeps the room back again if the disk has it and to spare; True if it is there now."""
        if self.is_whole:
            return True
        free, size = shutil.disk_usage(self._path.parent).free, self.size
        last = size // _SHARE_FOR_MAINTENANCE
        # At once, before settlements use up what maintenance has made free.
        if not self._last.exists() and (free < last or not _fill(self._last, last)):
            return False
        # Or it would be given up again at once.
        return free >= 2 * size and _fill(self._path, size - last)


def _fill(path: Path, size: int) -> bool:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _allocate(descriptor, size)
        finally:
            os.close(descriptor)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        return False
    return True


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS and Windows: a file of which nothing was written would take no room.
    zeros = bytes(_CHUNK_BYTES)
    for start in range(0, size, _CHUNK_BYTES):
        left = memoryview(zeros)[: size - start]
        while left:
            left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)
