"""Random calls on every store, compared with the model after every step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.testing.kit.model import state_machine
from tests.stores.harnesses import HARNESSES

#: A longer run: HOLDFAST_MODEL_EXAMPLES=20000 pytest tests/stores/test_model.py
EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", "200"))
PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


SHARES = {
    "sqlite-file": 0.5,
    "sqlite-memory": 0.4,
    "redis": 0.6,
    "valkey": 0.3,
    "redis-cluster": 0.2,
    "valkey-cluster": 0.1,
    "postgres": 0.3,
}
#: So many on each store whose code is its own are part of `make test`.
FEW_EXAMPLES = 10


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("harness", SHARES)
def test_store_equals_the_model(harness: str, tmp_path: Path) -> None:
    machine = state_machine(lambda: HARNESSES[harness](tmp_path))
    run_state_machine_as_test(machine, settings=settings(PROFILE, max_examples=round(EXAMPLES * SHARES[harness])))


@pytest.mark.parametrize("harness", ["sqlite-file", "redis", "postgres"])
def test_store_equals_the_model_for_a_while(harness: str, tmp_path: Path) -> None:
    machine = state_machine(lambda: HARNESSES[harness](tmp_path))
    run_state_machine_as_test(machine, settings=settings(PROFILE, max_examples=FEW_EXAMPLES))
