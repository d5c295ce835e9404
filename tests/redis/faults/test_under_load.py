"""Each fault five times in a row, under load: nothing acknowledged is lost, nothing stale is accepted, all adds up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.deployments import (
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

pytestmark = pytest.mark.slow

SEED = 7
TIMES = 5


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    with Replicas() as started:
        yield started


def five_times(deployment: Deployment, fault: str, directory: Path) -> Report:
    """The report on five of these faults, which tells of no violation."""
    report = run_faults(deployment, [fault] * TIMES, seed=SEED, directory=directory)
    logging.getLogger(__name__).info("%s", report)
    report.check()
    assert report.evidence.journal.stale_tried > 0, "the stale settler found nothing to settle"
    assert len(report.evidence.runs) >= report.acknowledged > 0
    return report


@pytest.mark.parametrize("fault", ["kill_master", "failover", "move_slot"])
def test_cluster(redis_cluster: RedisCluster, fault: str, tmp_path: Path) -> None:
    five_times(of_cluster(redis_cluster), fault, tmp_path)


@pytest.mark.parametrize("fault", ["kill_master", "failover"])
def test_sentinels(redis_sentinels: Sentinels, fault: str, tmp_path: Path) -> None:
    five_times(of_sentinels(redis_sentinels), fault, tmp_path)


def test_a_single_server_comes_back_with_its_aof(durable_server: RedisServer, tmp_path: Path) -> None:
    five_times(of_server(durable_server), "kill_and_restart", tmp_path)


def test_a_master_with_a_replica_comes_back_with_its_aof(replicas: Replicas, tmp_path: Path) -> None:
    five_times(of_replicas(replicas), "kill_and_restart", tmp_path)


def test_replies_are_lost_on_the_line_to_a_server(replicas: Replicas, tmp_path: Path) -> None:
    with FaultProxy(replicas.master.address, seed=SEED) as proxy:
        five_times(of_line(replicas, proxy), "drop_replies", tmp_path)
        assert proxy.struck.dropped_by_command.keys() >= {"EVALSHA"}


def test_replies_are_lost_on_the_lines_to_a_cluster(tmp_path: Path) -> None:
    with ProxiedCluster(seed=SEED) as cluster:
        five_times(of_proxied_cluster(cluster), "drop_replies", tmp_path)


def test_a_server_without_a_disk_is_found_out(redis_server: RedisServer, tmp_path: Path) -> None:
    report = run_faults(of_server(redis_server), ["kill_and_restart"], seed=SEED, directory=tmp_path)
    with pytest.raises(AssertionError, match="R15 unclaimed"):
        report.check()
