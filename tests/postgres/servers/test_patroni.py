"""A Patroni cluster that is really started, loses its leader, and finds another one."""

from __future__ import annotations

import psycopg
import pytest

from tests.servers.patroni import PatroniCluster

pytestmark = [pytest.mark.alone, pytest.mark.long]


def test_leader_is_killed_and_nothing_is_lost() -> None:
    with PatroniCluster() as cluster:
        cluster.query("CREATE TABLE numbers AS SELECT generate_series(1, 100) AS number")
        standby = cluster.synchronous_standby()
        old = cluster.kill_leader()
        assert old.postmaster is None
        assert cluster.leader() is standby
        assert cluster.query("SELECT count(*) FROM numbers") == [(100,)]
        old.start()
        cluster.wait_until_whole()
        assert cluster.leader() is standby
        new = cluster.switchover()
        assert new is not standby
        with psycopg.connect(cluster.url()) as connection:
            assert connection.info.port == new.database_port
