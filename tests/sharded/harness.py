"""A sharded store over three SQLite files, and short ways to work on it."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock

PARTITIONS = 3


def url_of(directory: Path, partitions: int = PARTITIONS) -> str:
    return ",".join(f"sqlite:///{directory.absolute()}/part-{n}.db" for n in range(partitions))


class ShardedSqliteHarness:
    """Three files in a directory of their own."""

    persistent = True

    def __init__(self, directory: Path) -> None:
        self.clock = SteppedClock()
        self._directory = directory

    async def open(self) -> Store:
        return open_store(url_of(self._directory), clock=self.clock)

    async def destroy(self) -> None:
        for path in self._directory.glob("part-*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
