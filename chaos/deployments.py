"""The servers under test, and the faults that each kind of them can suffer.

Cluster and Sentinel faults go through the methods of tests/servers, never by a bare kill: they know how to wait until
an election of Redis 7.0 can be won.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from tests.servers.cluster import RedisCluster
from tests.servers.flavours import DURABLE
from tests.servers.proxied_cluster import ProxiedCluster
from tests.servers.proxy import FaultProxy
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas
from tests.servers.sentinels import Sentinels

from chaos.clocks import MachineClock
from chaos.faults import Deployment, Fault, drops
from chaos.postgres_deployments import (
    deployed_patroni,
    deployed_postgres,
    deployed_postgres_clock,
    deployed_postgres_line,
    deployed_postgres_slow_line,
    deployed_postgres_snapshot,
)
from chaos.redis_records import keys_of
from chaos.server_deployments import (
    deployed_server,
    deployed_server_line,
    deployed_server_slow_line,
    deployed_servers,
)
from chaos.sqlite_records import rows_of
from chaos.stresses import SLOW, catch_up, slow_line, step_clocks, stepped

Kind = Literal[
    "cluster",
    "sentinel",
    "single",
    "replicas",
    "line",
    "cluster-line",
    "postgres",
    "postgres-line",
    "patroni",
    "server",
    "servers",
    "server-line",
    "sqlite",
    "clock",
    "postgres-clock",
    "slow-line",
    "postgres-slow-line",
    "server-slow-line",
    "postgres-snapshot",
]
_FAILOVER_TRIES: Final = 3


def of_cluster(cluster: RedisCluster) -> Deployment:
    """Masters with replicas that take over by themselves."""

    def kill_master(key: str, _random: Random) -> str:
        old = cluster.kill_master(key)
        cluster.heal()
        return f"killed {old}"

    def failover(key: str, _random: Random) -> str:
        new = cluster.failover(key)
        cluster.wait_until_whole()
        return f"{new} was told to take over"

    def freeze_master(key: str, _random: Random) -> str:
        old = cluster.freeze_master(key)
        cluster.heal()
        return f"froze {old}"

    def move_slot(key: str, random: Random) -> str:
        source = cluster.master_of(key)
        target = random.choice([master for master in cluster.masters() if master is not source])
        cluster.migrate_slot(key, target)
        return f"moved {key} from {source} to {target}"

    faults: dict[str, Fault] = {
        "kill_master": kill_master,
        "failover": failover,
        "freeze_master": freeze_master,
        "move_slot": move_slot,
    }
    return Deployment("cluster", _strict(cluster.url), keys_of(cluster.masters), cluster.heal, faults)


def of_sentinels(sentinels: Sentinels) -> Deployment:
    """One master, one replica, and Sentinels that promote it."""

    def kill_master(_key: str, _random: Random) -> str:
        old = sentinels.kill_master()
        sentinels.heal()
        return f"killed {old}"

    def failover(_key: str, _random: Random) -> str:
        for number in range(1, _FAILOVER_TRIES + 1):
            try:
                new = sentinels.failover()
            except AssertionError:
                # A Sentinel that hears of the new master too late makes it a replica again: a fault of its own.
                sentinels.wait_until_whole()
            else:
                sentinels.wait_until_whole()
                return f"{new} was told to take over, try {number}"
        raise AssertionError(f"no failover in {_FAILOVER_TRIES} tries")

    faults = {"kill_master": kill_master, "failover": failover}
    return Deployment("sentinel", _strict(sentinels.url), keys_of(lambda: [sentinels.master]), sentinels.heal, faults)


def of_server(server: RedisServer) -> Deployment:
    """One server on its own: it has no replica, so its own disk is all the safety there is."""
    faults = _restarts(server, server.wait_until_ready)
    return Deployment("single", f"{server.url}?durability=local", keys_of(lambda: [server]), server.heal, faults)


def of_replicas(replicas: Replicas) -> Deployment:
    """A master with a replica that is never promoted; it comes back with what its AOF has."""
    faults = _restarts(replicas.master, replicas.wait_until_whole)
    return Deployment("replicas", _strict(replicas.url), keys_of(lambda: [replicas.master]), replicas.heal, faults)


def of_line(replicas: Replicas, proxy: FaultProxy) -> Deployment:
    """A master with a replica, behind a line that can be made bad."""

    def heal() -> None:
        proxy.strike()
        replicas.heal()

    faults = {"drop_replies": drops(proxy.strike, lambda: proxy.struck.dropped)}
    url = _strict(proxy.url_for(replicas.url))
    return Deployment("line", url, keys_of(lambda: [replicas.master]), heal, faults)


def of_proxied_cluster(cluster: ProxiedCluster) -> Deployment:
    """A cluster behind lines that can be made bad."""

    def heal() -> None:
        cluster.strike()
        cluster.heal()

    faults = {**of_cluster(cluster).faults, "drop_replies": drops(cluster.strike, lambda: cluster.dropped)}
    return Deployment("cluster-line", _strict(cluster.url), keys_of(cluster.masters), heal, faults)


def deployed(kind: Kind, seed: int) -> AbstractContextManager[Deployment]:
    """New servers of this kind, for a run of their own."""
    return _MAKERS[kind](seed)


@contextmanager
def _deployed_cluster(_seed: int) -> Iterator[Deployment]:
    with RedisCluster() as cluster:
        yield of_cluster(cluster)


@contextmanager
def _deployed_sentinels(_seed: int) -> Iterator[Deployment]:
    with Sentinels() as sentinels:
        yield of_sentinels(sentinels)


@contextmanager
def _deployed_server(_seed: int) -> Iterator[Deployment]:
    with RedisServer(profile=DURABLE) as server:
        yield of_server(server)


@contextmanager
def _deployed_replicas(_seed: int) -> Iterator[Deployment]:
    with Replicas() as replicas:
        yield of_replicas(replicas)


@contextmanager
def _deployed_line(seed: int) -> Iterator[Deployment]:
    with Replicas() as replicas, FaultProxy(replicas.master.address, seed=seed) as proxy:
        yield of_line(replicas, proxy)


@contextmanager
def _deployed_cluster_line(seed: int) -> Iterator[Deployment]:
    with ProxiedCluster(seed=seed) as proxied:
        yield of_proxied_cluster(proxied)


@contextmanager
def _deployed_slow_line(seed: int) -> Iterator[Deployment]:
    with RedisServer(profile=DURABLE) as server, FaultProxy(server.address, seed=seed) as proxy:
        url = f"{server.url}?durability=local"
        yield Deployment(
            "slow-line",
            url,
            keys_of(lambda: [server]),
            server.heal,
            {},
            {"slow_line": slow_line(proxy)},
            worker_url=proxy.url_for(url),
            **SLOW,
        )


@contextmanager
def _deployed_sqlite(_seed: int) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as directory:
        clock, path = MachineClock(Path(directory)), Path(directory) / "tasks.db"
        with clock.followed_here():
            yield Deployment(
                "sqlite",
                f"sqlite:///{path}",
                rows_of(path),
                lambda: clock.step(0),
                {},
                {"step_clock": step_clocks([clock])},
                environment=clock.environment,
                catch_up=catch_up([clock]),
                forks_alone=True,
            )


@contextmanager
def _deployed_clock(_seed: int) -> Iterator[Deployment]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as directory,
        stepped(Path(directory)) as clocks,
        RedisServer("valkey", profile=DURABLE, prefix=clocks.server.prefix) as server,
    ):
        yield Deployment(
            "clock",
            f"{server.url}?durability=local",
            keys_of(lambda: [server]),
            clocks.heal,
            {},
            clocks.stresses,
            environment=clocks.host.environment,
            catch_up=catch_up(clocks.all),
        )


_MAKERS: Final[dict[Kind, Callable[[int], AbstractContextManager[Deployment]]]] = {
    "cluster": _deployed_cluster,
    "sentinel": _deployed_sentinels,
    "single": _deployed_server,
    "replicas": _deployed_replicas,
    "line": _deployed_line,
    "cluster-line": _deployed_cluster_line,
    "postgres": deployed_postgres,
    "postgres-line": deployed_postgres_line,
    "patroni": deployed_patroni,
    "server": deployed_server,
    "servers": deployed_servers,
    "server-line": deployed_server_line,
    "sqlite": _deployed_sqlite,
    "clock": _deployed_clock,
    "postgres-clock": deployed_postgres_clock,
    "slow-line": _deployed_slow_line,
    "postgres-slow-line": deployed_postgres_slow_line,
    "server-slow-line": deployed_server_slow_line,
    "postgres-snapshot": deployed_postgres_snapshot,
}


def _restarts(server: RedisServer, wait_until_whole: Callable[[], Any]) -> dict[str, Fault]:
    def restart(how: Literal["kill", "stop"]) -> Fault:
        def strike(_key: str, _random: Random) -> str:
            server.restart(kill=how == "kill")
            wait_until_whole()
            return f"{server}: {how}, then start"

        return strike

    return {"kill_and_restart": restart("kill"), "stop_and_restart": restart("stop")}


def _strict(url: str) -> str:
    return f"{url}?durability=strict"
