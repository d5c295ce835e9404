"""Clients of a proxied cluster are led through the proxies, whatever they ask and whatever has happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster as ClusterClient
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.servers.loopback import HOST
from tests.servers.proxied_cluster import ProxiedCluster
from tests.servers.proxy import LineFaults
from tests.support import eventually

pytestmark = [pytest.mark.alone, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    with ProxiedCluster() as cluster:
        yield cluster


def client_of(cluster: ProxiedCluster) -> ClusterClient:
    """A client that sends nothing twice."""
    return ClusterClient(host=HOST, port=cluster.proxies[0].port, retry=Retry(NoBackoff(), 0), decode_responses=True)


def test_all_nodes_are_reached_through_their_proxies(cluster: ProxiedCluster) -> None:
    with client_of(cluster) as client:
        for number in range(60):
            client.set(f"key-{number}", number)
        assert {node.port for node in client.get_primaries()} <= {proxy.port for proxy in cluster.proxies}
    assert sum(proxy.struck.replies > 0 for proxy in cluster.proxies) == 3


def test_replies_are_lost_and_the_cluster_is_well(cluster: ProxiedCluster) -> None:
    before, lost = cluster.dropped, 0
    cluster.strike(LineFaults(drop_every=4))
    with client_of(cluster) as client:
        for number in range(60):
            try:
                client.set(f"key-{number}", "new")
            except RedisError:
                lost += 1
        cluster.strike()
        assert cluster.dropped - before == lost > 5
        assert {client.get(f"key-{number}") for number in range(60)} == {"new"}
    cluster.wait_until_whole()


def test_new_master_is_reached_through_its_proxy_too(cluster: ProxiedCluster) -> None:
    old = cluster.kill_master("a")
    cluster.heal()
    assert cluster.master_of("a") is not old

    def seen() -> set[int]:
        with client_of(cluster) as client:
            client.set("a", "1")
            return {node.port for node in client.get_nodes()}

    # The restarted node is a replica again a moment after it answers.
    eventually(lambda: seen() == {proxy.port for proxy in cluster.proxies}, 30)
