"""A server that fails under load: nothing acknowledged is lost, nothing stale is accepted, and all adds up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from chaos.deployments import deployed
from chaos.faults import Deployment
from chaos.run import run_faults
from chaos.server_deployments import deployed_server, deployed_server_line

pytestmark = pytest.mark.alone

SEED = 7


def checked(deployment: Deployment, faults: list[str], directory: Path) -> None:
    """These faults, one after the other, and no promise broken."""
    report = run_faults(deployment, faults, seed=SEED, directory=directory)
    logging.getLogger(__name__).info("%s", report)
    report.check()
    assert report.complaints == []
    assert report.evidence.journal.stale_tried > 0, "the stale settler found nothing to settle"
    assert len(report.evidence.runs) >= report.acknowledged > 0


def test_a_server_is_killed_stopped_and_frozen(tmp_path: Path) -> None:
    with deployed_server(SEED) as deployment:
        checked(deployment, ["kill_server", "stop_server", "freeze_server", "fork_producers"], tmp_path)


def test_answers_are_lost_on_the_line_to_a_server(tmp_path: Path) -> None:
    with deployed_server_line(SEED) as deployment:
        checked(deployment, ["drop_replies"], tmp_path)


@pytest.mark.long
def test_large_tasks_come_over_a_slow_line(tmp_path: Path) -> None:
    with deployed("server-slow-line", SEED) as deployment:
        run_faults(deployment, ["slow_line"], seed=SEED, directory=tmp_path).check()
