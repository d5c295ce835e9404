"""Groups of servers replicate, fail over, and come back whole."""

from __future__ import annotations

import time

import pytest
from redis.exceptions import AskError, MovedError, ResponseError

from tests.servers.cluster import SLOTS, RedisCluster, slot_of
from tests.servers.cluster_view import nodes_in
from tests.servers.flavours import FAST, Flavour
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas
from tests.servers.sentinels import SERVICE, Sentinels
from tests.support import eventually

pytestmark = [pytest.mark.alone, pytest.mark.long]


def write_safely(server: RedisServer, key: str, value: str) -> None:
    """Returns when one replica has it."""
    with server.client() as client:
        client.set(key, value)
        assert int(client.execute_command("WAIT", 1, 5_000)) >= 1


# -- replicas -----------------------------------------------------------------------------------------------


def test_replicas_have_what_the_master_has(flavour: Flavour) -> None:
    with Replicas(2, flavour) as group:
        with group.master.client() as client:
            client.set("a", "1")
            assert client.execute_command("WAIT", 2, 5_000) == 2
        assert [replica.command("GET", "a") for replica in group.replicas] == ["1", "1"]


def test_replica_comes_back_as_a_replica() -> None:
    with Replicas() as group:
        write_safely(group.master, "a", "1")
        group.replicas[0].kill()
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            eventually(lambda: group.master.command("SET", "b", "2") != "OK", what="writes are refused")
        group.heal()
        write_safely(group.master, "c", "3")
        assert group.replicas[0].command("GET", "c") == "3"


# -- Sentinel -----------------------------------------------------------------------------------------------


def test_sentinels_promote_when_the_master_is_killed(redis_sentinels: Sentinels) -> None:
    write_safely(redis_sentinels.master, "a", "1")
    old = redis_sentinels.kill_master()
    assert redis_sentinels.master is not old
    assert redis_sentinels.master.command("GET", "a") == "1"
    redis_sentinels.heal()
    # It comes back as the master that it was, until the Sentinels have told it otherwise.
    eventually(lambda: old.command("ROLE")[0] == "slave", 60)
    write_safely(redis_sentinels.wait_until_whole().master, "b", "2")


def test_sentinels_that_stood_still_act_soon(redis_sentinels: Sentinels) -> None:
    for sentinel in redis_sentinels.sentinels:
        sentinel.freeze()
    # Longer than a Sentinel trusts its clock. The fault is this span: no test can step the clock of a real Sentinel.
    until = time.monotonic() + 3
    eventually(lambda: time.monotonic() > until)
    for sentinel in redis_sentinels.sentinels:
        sentinel.thaw()
    old = redis_sentinels.kill_master()
    assert redis_sentinels.heal().master is not old


def test_sentinels_fail_over_when_told(redis_sentinels: Sentinels) -> None:
    old = redis_sentinels.master
    write_safely(old, "a", "1")
    new = redis_sentinels.failover()
    assert new is not old
    assert redis_sentinels.wait_until_whole().master is new
    assert new.command("GET", "a") == "1"
    for sentinel in redis_sentinels.sentinels:
        assert int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]) == new.port


def test_valkey_has_sentinels_too() -> None:
    with Sentinels(flavour="valkey") as group:
        write_safely(group.master, "a", "1")
        new = group.failover()
        assert new.command("GET", "a") == "1"


# -- cluster ------------------------------------------------------------------------------------------------


def test_cluster_is_whole(flavour: Flavour) -> None:
    with RedisCluster(flavour=flavour, profile=FAST) as cluster:
        masters = cluster.masters()
        assert len(masters) == 3
        assert sum(len(cluster.myself(master).slots) for master in masters) == SLOTS
        assert all(len(cluster.replicas_of(master)) == 1 for master in masters)


def test_cluster_fails_over_when_a_master_is_killed(redis_cluster: RedisCluster) -> None:
    write_safely(redis_cluster.master_of("a"), "a", "1")
    [replica] = redis_cluster.replicas_of(redis_cluster.master_of("a"))
    old = redis_cluster.kill_master("a")
    assert redis_cluster.master_of("a") is replica
    assert replica.command("GET", "a") == "1"
    redis_cluster.heal()
    assert redis_cluster.replicas_of(replica) == [old]


def test_cluster_fails_over_when_told(redis_cluster: RedisCluster) -> None:
    old = redis_cluster.master_of("a")
    write_safely(old, "a", "1")
    new = redis_cluster.failover("a")
    assert new is not old
    assert new.command("GET", "a") == "1"
    redis_cluster.wait_until_whole()


def test_frozen_master_is_replaced_and_follows_later(redis_cluster: RedisCluster) -> None:
    old = redis_cluster.freeze_master("a")
    new = redis_cluster.master_of("a")
    assert new is not old
    redis_cluster.heal()
    assert redis_cluster.replicas_of(new) == [old]


def test_slot_moves_with_its_keys(redis_cluster: RedisCluster) -> None:
    source = redis_cluster.master_of("{tag}")
    [target, *_] = [master for master in redis_cluster.masters() if master is not source]
    with source.client() as client:
        for number in range(250):
            client.set(f"{{tag}}{number}", number)
    redis_cluster.migrate_slot("{tag}", target)
    assert redis_cluster.master_of("{tag}") is target
    assert target.command("CLUSTER", "COUNTKEYSINSLOT", slot_of("{tag}")) == 250
    with pytest.raises(MovedError):
        source.command("GET", "{tag}1")
    redis_cluster.wait_until_whole()


def test_clients_are_sent_on_in_the_middle_of_a_migration(redis_cluster: RedisCluster) -> None:
    source = redis_cluster.master_of("{tag}")
    [target, *_] = [master for master in redis_cluster.masters() if master is not source]
    source.command("SET", "{tag}1", "a")
    assert redis_cluster.begin_migration("{tag}", target) is source
    assert redis_cluster.move_keys("{tag}", source, target) == 1
    with pytest.raises(AskError):
        source.command("GET", "{tag}1")
    redis_cluster.finish_migration("{tag}", source, target)
    assert target.command("GET", "{tag}1") == "a"


def test_lines_of_cluster_nodes_are_read() -> None:
    text = (
        "aa 127.0.0.1:7000@17000,host myself,master - 0 0 3 connected 0-2 7 [9->-bb]\n"
        "bb 127.0.0.1:7001@17001 slave,fail? aa 0 0 3 disconnected\n"
    )
    one, two = nodes_in(text)
    assert (one.port, one.epoch, one.slots, one.master_id) == (7000, 3, frozenset({0, 1, 2, 7}), None)
    assert one.is_master
    assert one.is_sound
    assert (two.port, two.slots, two.master_id) == (7001, frozenset(), "aa")
    assert not two.is_master
    assert not two.is_sound
