"""The sharded store keeps every promise of the contract: the kit and the model, over three SQLite files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.testing.kit.conformance import CASES, Case, run_case
from holdfast.testing.kit.model import state_machine
from tests.sharded.harness import ShardedSqliteHarness
from tests.stores.sampling import sampled

#: A longer run: HOLDFAST_MODEL_EXAMPLES=20000 pytest tests/sharded/test_conformance.py
EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", "60"))
PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("case", sampled(CASES, 4))
def test_promise_is_kept(case: Case, tmp_path: Path) -> None:
    asyncio.run(run_case(case, lambda: ShardedSqliteHarness(tmp_path)))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_store_equals_the_model(tmp_path: Path) -> None:
    machine = state_machine(lambda: ShardedSqliteHarness(tmp_path))
    run_state_machine_as_test(machine, settings=PROFILE)
