"""Room kept back for settlements: a full disk must stop new tasks, never the end of running ones."""

from __future__ import annotations

import os
from pathlib import Path

#: Enough for about a hundred thousand settlements.
BALLAST_BYTES = 32 * 1024 * 1024
#: On a small disk, at most this part of it.
_SHARE_OF_DISK = 8


class Ballast:
    """A file of zeros beside the database that is given up when the disk is full."""

    def __init__(self, database: str) -> None:
        self._path = Path(database + "-ballast") if database else None

    @property
    def size(self) -> int:
        """How much room is to be kept back, in bytes."""
        if self._path is None:
            return BALLAST_BYTES
        disk = os.statvfs(self._path.parent)
        return min(BALLAST_BYTES, disk.f_blocks * disk.f_frsize // _SHARE_OF_DISK)

    @property
    def present(self) -> bool:
        """Whether the room is kept back; without it no new tasks are taken."""
        return self._path is None or self._path.exists()

    def give_up(self) -> None:
        """Frees the room for settlements."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def restore(self) -> bool:
        """Keeps the room back again if the disk has it and to spare; True if it is there now."""
        if self._path is None or self._path.exists():
            return True
        disk = os.statvfs(self._path.parent)
        size = self.size
        if disk.f_bavail * disk.f_frsize < 2 * size:
            return False  # It would be given up again at once.
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._fill(partial, size)
            partial.rename(self._path)
        except OSError:
            partial.unlink(missing_ok=True)
            return False
        return True

    @staticmethod
    def _fill(path: Path, size: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)
