"""Which of many cases are part of `make test` where running them all takes long; `make test-all` runs the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

#: Each fault is made this often in a row by the long runs.
TIMES = 2


def sampled(cases: Sequence[Any], every: int = 8, *, first: int = 0) -> list[Any]:
    """All cases as parameters, of which one in `every` is not long; `first` says with which one that begins."""
    return [pytest.param(case, id=str(case), marks=_long_unless(n % every == first)) for n, case in enumerate(cases)]


def on_each(harnesses: Iterable[str], cases: Sequence[Any], every: int = 8) -> list[Any]:
    """All pairs of these; each harness has another sample, so that together they have most of the cases."""
    return [
        pytest.param(harness, case, id=f"{harness}-{case}", marks=_long_unless(n % every == place % every))
        for place, harness in enumerate(harnesses)
        for n, case in enumerate(cases)
    ]


def in_turn(*faults: str, besides: Sequence[str] = ()) -> list[Any]:
    """One run with each of these faults and those `besides`, and long runs with each of them some times in a row."""
    again = [pytest.param([fault] * TIMES, id=fault, marks=pytest.mark.long) for fault in faults]
    return [pytest.param([*faults, *besides], id="in turn"), *again]


def _long_unless(condition: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if condition else (pytest.mark.long,)
