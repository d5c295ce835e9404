"""Every promise of the contract, on every store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.testing.kit.conformance import CASES, Case, run_case
from tests.stores.harnesses import HARNESSES
from tests.stores.sampling import on_each

#: The stores with a code of their own; what stands beside them is sampled.
WHOLE = ("sqlite-file", "sqlite-memory", "redis", "postgres")


@pytest.mark.parametrize(
    ("harness", "case"),
    [*on_each(WHOLE, CASES, every=1), *on_each([name for name in HARNESSES if name not in WHOLE], CASES)],
)
def test_promise_is_kept(harness: str, case: Case, tmp_path: Path) -> None:
    if case.needs_persistence and not HARNESSES[harness](tmp_path).persistent:
        pytest.skip("this store keeps nothing to open again")
    asyncio.run(run_case(case, lambda: HARNESSES[harness](tmp_path)))


def test_names_of_the_cases_are_unique() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
