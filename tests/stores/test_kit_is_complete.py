"""Every method of the contract is checked by at least one case, and wrappers leave none out."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.stores.contract import Store
from holdfast.stores.decorate import PassingStore
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.conformance import CASES, run_case
from holdfast.testing.kit.harness import DecoratedHarness, SqliteHarness

METHODS = {name for name, value in vars(Store).items() if callable(value) and not name.startswith("_")}
#: Called by the kit itself around every case, so a call from a case cannot be told apart.
FRAME = {"migrate", "close"}


class _Counting(PassingStore):
    """Counts the calls of each method."""

    def __init__(self, inner: Store, calls: Counter[str]) -> None:
        super().__init__(inner)
        self._calls = calls

    def __getattribute__(self, name: str) -> Any:
        if name in METHODS:
            object.__getattribute__(self, "_calls")[name] += 1
        return object.__getattribute__(self, name)


def test_every_method_is_exercised(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def counted(store: Store, _clock: SteppedClock) -> Store:
        return _Counting(store, calls)

    for case in CASES:
        if case.group != "concurrency":
            asyncio.run(run_case(case, lambda: DecoratedHarness(SqliteHarness(tmp_path), counted)))
    assert set(calls) == METHODS
    assert all(calls[name] > len(CASES) // 2 for name in FRAME)


def test_every_case_makes_a_promise() -> None:
    short = [str(case) for case in CASES if len(case.promise) < 20 or not case.promise.endswith(".")]
    assert short == []


def test_the_passing_store_passes_every_method() -> None:
    assert {name for name in METHODS if name not in vars(PassingStore)} == set()
