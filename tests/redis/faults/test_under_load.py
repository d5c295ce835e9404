"""Faults under load: nothing acknowledged is lost, nothing stale is accepted, all adds up."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from chaos.deployments import (
    Kind,
    deployed,
    of_cluster,
    of_line,
    of_proxied_cluster,
    of_replicas,
    of_sentinels,
    of_server,
)
from chaos.faults import Deployment
from chaos.report import Report
from chaos.run import run_faults

from tests.servers.cluster import RedisCluster
from tests.servers.proxied_cluster import ProxiedCluster
from tests.servers.proxy import FaultProxy
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas
from tests.servers.sentinels import Sentinels
from tests.stores.sampling import TIMES, in_turn

pytestmark = pytest.mark.alone

SEED = 7


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    with Replicas() as started:
        yield started


def checked(deployment: Deployment, faults: Sequence[str], directory: Path) -> Report:
    """The report on these faults, which tells of no violation."""
    report = run_faults(deployment, faults, seed=SEED, directory=directory)
    logging.getLogger(__name__).info("%s", report)
    report.check()
    assert report.evidence.journal.stale_tried > 0, "the stale settler found nothing to settle"
    assert len(report.evidence.runs) >= report.acknowledged > 0
    return report


@pytest.mark.parametrize("faults", in_turn("kill_master", "failover", "move_slot"))
def test_cluster(redis_cluster: RedisCluster, faults: list[str], tmp_path: Path) -> None:
    checked(of_cluster(redis_cluster), faults, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("faults", in_turn("kill_master", "failover"))
def test_sentinels(redis_sentinels: Sentinels, faults: list[str], tmp_path: Path) -> None:
    checked(of_sentinels(redis_sentinels), faults, tmp_path)


@pytest.mark.parametrize("faults", in_turn("kill_and_restart", besides=["fork_producers", "poison"]))
def test_a_single_server_comes_back_with_its_aof(
    durable_server: RedisServer, faults: list[str], tmp_path: Path
) -> None:
    checked(of_server(durable_server), faults, tmp_path)


@pytest.mark.long
def test_a_master_with_a_replica_comes_back_with_its_aof(replicas: Replicas, tmp_path: Path) -> None:
    checked(of_replicas(replicas), ["kill_and_restart"] * TIMES, tmp_path)


@pytest.mark.parametrize("faults", in_turn("drop_replies"))
def test_replies_are_lost_on_the_line_to_a_server(replicas: Replicas, faults: list[str], tmp_path: Path) -> None:
    with FaultProxy(replicas.master.address, seed=SEED) as proxy:
        checked(of_line(replicas, proxy), faults, tmp_path)
        assert proxy.struck.dropped_by_command.keys() >= {"EVALSHA"}


@pytest.mark.long
def test_replies_are_lost_on_the_lines_to_a_cluster(tmp_path: Path) -> None:
    with ProxiedCluster(seed=SEED) as cluster:
        checked(of_proxied_cluster(cluster), ["drop_replies"] * TIMES, tmp_path)


@pytest.mark.long
def test_a_server_without_a_disk_is_found_out(redis_server: RedisServer, tmp_path: Path) -> None:
    report = run_faults(of_server(redis_server), ["kill_and_restart"], seed=SEED, directory=tmp_path)
    with pytest.raises(AssertionError, match="R15 unclaimed"):
        report.check()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "fault"), [("slow-line", "slow_line"), ("clock", "step_clock")])
def test_stresses(kind: Kind, fault: str, tmp_path: Path) -> None:
    with deployed(kind, SEED) as deployment:
        run_faults(deployment, [fault], seed=SEED, directory=tmp_path).check()
