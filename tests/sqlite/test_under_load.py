"""Faults under load on SQLite: nothing acknowledged is lost, nothing is early, no slot is lost, and all adds up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from chaos.deployments import deployed
from chaos.run import run_faults

from tests.stores.sampling import in_turn

pytestmark = pytest.mark.alone

SEED = 7


@pytest.mark.parametrize(
    "faults",
    [
        *in_turn("kill_worker", besides=["fork_producers", "poison"]),
        pytest.param(["poison_exits", "step_clock"], id="exits and clock", marks=pytest.mark.long),
    ],
)
def test_a_file(faults: list[str], tmp_path: Path) -> None:
    with deployed("sqlite", SEED) as deployment:
        report = run_faults(deployment, faults, seed=SEED, directory=tmp_path)
    logging.getLogger(__name__).info("%s", report)
    report.check()
    assert len(report.evidence.runs) >= report.acknowledged > 0
