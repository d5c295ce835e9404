"""Faults under load: nothing acknowledged is lost, nothing stale is accepted, all adds up, and work goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from chaos.deployments import Kind, deployed
from chaos.faults import Deployment
from chaos.postgres_deployments import deployed_patroni, deployed_postgres, deployed_postgres_line
from chaos.report import Report
from chaos.run import run_faults

from tests.stores.sampling import in_turn

pytestmark = pytest.mark.alone

SEED = 7


@pytest.fixture
def server() -> Iterator[Deployment]:
    with deployed_postgres(SEED) as deployment:
        yield deployment


@pytest.fixture
def line() -> Iterator[Deployment]:
    with deployed_postgres_line(SEED) as deployment:
        yield deployment


@pytest.fixture
def patroni() -> Iterator[Deployment]:
    with deployed_patroni(SEED) as deployment:
        yield deployment


def checked(deployment: Deployment, faults: Sequence[str], directory: Path) -> Report:
    """The report on these faults, which tells of no violation."""
    report = run_faults(deployment, faults, seed=SEED, directory=directory)
    logging.getLogger(__name__).info("%s", report)
    report.check()
    assert report.evidence.journal.stale_tried > 0, "the stale settler found nothing to settle"
    assert len(report.evidence.runs) >= report.acknowledged > 0
    return report


@pytest.mark.parametrize(
    "faults",
    in_turn(
        *("kill_and_restart", "kill_postmaster", "stop_and_restart", "terminate_backends", "freeze"),
        besides=["fork_producers", "poison"],
    ),
)
def test_a_server_goes_on_where_it_was(server: Deployment, faults: list[str], tmp_path: Path) -> None:
    checked(server, faults, tmp_path)


@pytest.mark.parametrize("faults", in_turn("drop_replies", "cut"))
def test_replies_are_lost_on_the_line_to_a_server(line: Deployment, faults: list[str], tmp_path: Path) -> None:
    checked(line, faults, tmp_path)


@pytest.mark.long
def test_a_standby_takes_over(patroni: Deployment, tmp_path: Path) -> None:
    checked(patroni, ["switchover", "kill_leader", "cancel_waits"], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("postgres-slow-line", "slow_line"),
        ("postgres-clock", "step_clock"),
        ("postgres-snapshot", "hold_snapshot"),
    ],
)
def test_stresses(kind: Kind, fault: str, tmp_path: Path) -> None:
    with deployed(kind, SEED) as deployment:
        run_faults(deployment, [fault], seed=SEED, directory=tmp_path).check()
