"""The harnesses of the stores that this package ships, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.stores.contract import Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.faulty import FaultyStore, no_faults
from holdfast.testing.harness import DecoratedHarness, SqliteHarness, SqliteMemoryHarness, StoreHarness


def _faultless(store: Store, _clock: SteppedClock) -> Store:
    return FaultyStore(store, no_faults())


HARNESSES: dict[str, Callable[[Path], StoreHarness]] = {
    "sqlite-file": SqliteHarness,
    "sqlite-memory": lambda _directory: SqliteMemoryHarness(),
    "faulty-without-faults": lambda directory: DecoratedHarness(SqliteHarness(directory), _faultless),
}
