"""Every promise of the contract, on every store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.testing.conformance import CASES, Case, run_case
from tests.stores.harnesses import HARNESSES


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("harness", HARNESSES)
def test_promise_is_kept(harness: str, case: Case, tmp_path: Path) -> None:
    if case.needs_persistence and not HARNESSES[harness](tmp_path).persistent:
        pytest.skip("this store keeps nothing to open again")
    asyncio.run(run_case(case, lambda: HARNESSES[harness](tmp_path)))


def test_names_of_the_cases_are_unique() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
