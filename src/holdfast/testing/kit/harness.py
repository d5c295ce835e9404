"""How the kit gets at a store: opened on a stepped clock, opened again on the same data, thrown away."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock


class StoreHarness(Protocol):
    """One set of data of one engine, empty at first; a fresh one is made for every case."""

    #: The clock that every opened store obeys.
    clock: SteppedClock
    #: Whether `open` called again opens the same data; if not, the cases that need it are left out.
    persistent: bool

    async def open(self) -> Store:
        """A store on this data, as another process would open it."""
        ...

    async def destroy(self) -> None:
        """Deletes the data; every opened store was closed before."""
        ...


HarnessFactory = Callable[[], StoreHarness]


class SqliteHarness:
    """A SQLite file in a directory of its own."""

    persistent = True

    def __init__(self, directory: Path) -> None:
        self.clock = SteppedClock()
        self._path = directory.absolute() / "kit.db"

    async def open(self) -> Store:
        """A store on the file, made at the first call."""
        return open_store(f"sqlite:///{self._path}", clock=self.clock)

    async def destroy(self) -> None:
        """Deletes the file and what lies beside it."""
        for path in self._path.parent.glob(f"{self._path.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class SqliteMemoryHarness:
    """A SQLite store in memory, which is gone when it is closed."""

    persistent = False

    def __init__(self) -> None:
        self.clock = SteppedClock()

    async def open(self) -> Store:
        """A new, empty store."""
        return open_store("sqlite://", clock=self.clock)

    async def destroy(self) -> None:
        """Nothing is left of it."""


class DecoratedHarness:
    """Another harness whose stores are wrapped."""

    def __init__(self, inner: StoreHarness, decorate: Callable[[Store, SteppedClock], Store]) -> None:
        self.clock = inner.clock
        self.persistent = inner.persistent
        self._inner = inner
        self._decorate = decorate

    async def open(self) -> Store:
        """The wrapped store."""
        return self._decorate(await self._inner.open(), self.clock)

    async def destroy(self) -> None:
        """Deletes the inner harness's data."""
        await self._inner.destroy()
