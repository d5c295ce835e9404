"""PostgreSQL under test: one server, one behind a bad line, and a Patroni cluster in strict synchronous mode."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from tests.servers.patroni import PatroniCluster
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import DURABLE
from tests.servers.postgres_wire import PostgresWire
from tests.servers.proxy import FaultProxy
from tests.support import eventually

from chaos.faults import Deployment, Fault, drops, wait_seconds
from chaos.postgres_records import tables_of
from chaos.stresses import SLOW, catch_up, hold_snapshot, slow_line, stepped
from holdfast.stores.open import open_store

#: Shorter and longer than the deadline of a client.
_FROZEN_SECONDS: Final = (1.0, 4.0, 8.0)
#: Orders a second of the load beside the batches whose pace is measured.
_BESIDE_A_SNAPSHOT: Final = 200
_CANCELLED_WAITS: Final = 50
_CANCEL_SECONDS: Final = 30.0
_CANCEL: Final = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def of_postgres(server: PostgresServer, database: str) -> Deployment:
    """One server on its own: it has no standby, so its own disk is all the safety there is."""
    url = server.url(database, durability="local")
    read = tables_of(partial(server.query, database=database))
    return Deployment("postgres", url, read, server.heal, _faults_of(server, database))


def of_postgres_line(server: PostgresServer, database: str, proxy: FaultProxy) -> Deployment:
    """One server behind a line that can be made bad."""

    def heal() -> None:
        proxy.strike()
        server.heal()

    def cut(_key: str, _random: Random) -> str:
        return f"cut {proxy.cut()} connections"

    faults: dict[str, Fault] = {"drop_replies": drops(proxy.strike, lambda: proxy.struck.dropped), "cut": cut}
    url = proxy.url_for(server.url(database, durability="local"))
    return Deployment("postgres-line", url, tables_of(partial(server.query, database=database)), heal, faults)


def of_patroni(cluster: PatroniCluster, database: str) -> Deployment:
    """A primary and two standbys, of which one is always waited for and takes over."""
    url = cluster.url(database, durability="strict")
    read = tables_of(partial(cluster.query, database=database))
    return Deployment("patroni", url, read, cluster.heal, _faults_of_cluster(cluster))


def _faults_of(server: PostgresServer, database: str) -> dict[str, Fault]:
    def kill(_key: str, _random: Random) -> str:
        server.restart(kill=True)
        return f"{server}: killed with all backends, then started"

    def kill_postmaster(_key: str, _random: Random) -> str:
        server.kill_postmaster()
        server.start()
        return f"{server}: postmaster killed, then started"

    def stop(_key: str, _random: Random) -> str:
        server.restart()
        return f"{server}: stopped, then started"

    def freeze(_key: str, random: Random) -> str:
        seconds = random.choice(_FROZEN_SECONDS)
        server.freeze()
        wait_seconds(seconds)
        server.thaw()
        return f"{server}: frozen for {seconds:g} s"

    def terminate(_key: str, _random: Random) -> str:
        terminated = server.terminate_backends(f"datname = '{database}'")
        return f"{server}: terminated {terminated} backends"

    return {
        "kill_and_restart": kill,
        "kill_postmaster": kill_postmaster,
        "stop_and_restart": stop,
        "freeze": freeze,
        "terminate_backends": terminate,
    }


def _faults_of_cluster(cluster: PatroniCluster) -> dict[str, Fault]:
    def kill_leader(_key: str, _random: Random) -> str:
        old = cluster.kill_leader()
        cluster.heal()
        return f"killed {old}"

    def switchover(_key: str, _random: Random) -> str:
        new = cluster.switchover()
        cluster.wait_until_whole()
        return f"{new} was told to take over"

    def freeze_leader(_key: str, _random: Random) -> str:
        old = cluster.wait_for_leader()
        old.freeze()
        cluster.wait_for_leader(other_than=old)
        cluster.heal()
        return f"froze {old}"

    def freeze_patroni(_key: str, _random: Random) -> str:
        old = cluster.wait_for_leader()
        old.freeze_patroni()
        cluster.wait_for_leader(other_than=old)
        cluster.heal()
        return f"froze Patroni of {old}, whose server went on"

    def kill_standby(_key: str, _random: Random) -> str:
        standby = cluster.wait_for_synchronous_standby()
        standby.kill()
        cluster.heal()
        return f"killed {standby}, which was waited for"

    def cancel_waits(_key: str, _random: Random) -> str:
        return _cancel_waits(cluster)

    return {
        "kill_leader": kill_leader,
        "switchover": switchover,
        "freeze_leader": freeze_leader,
        "freeze_patroni": freeze_patroni,
        "kill_standby": kill_standby,
        "cancel_waits": cancel_waits,
    }


def _cancel_waits(cluster: PatroniCluster) -> str:
    """Cancels commits while they wait for a standby that gets nothing, and kills the only server that has them.

    PostgreSQL reports such commits as successful, with a warning.
    """
    leader, standby = cluster.wait_for_leader(), cluster.wait_for_synchronous_standby()
    cancelled = 0

    def enough() -> bool:
        nonlocal cancelled
        cancelled += len(leader.query(_CANCEL))
        return cancelled >= _CANCELLED_WAITS

    with standby.deaf():
        eventually(enough, _CANCEL_SECONDS, f"{_CANCELLED_WAITS} waits are cancelled")
        leader.kill()
    cluster.wait_for_leader(other_than=leader)
    cluster.heal()
    return f"cancelled {cancelled} waits for {standby} and killed {leader}"


@contextmanager
def deployed_postgres(_seed: int) -> Iterator[Deployment]:
    """A new server."""
    with PostgresServer(profile=DURABLE) as server:
        yield _prepared(of_postgres(server, server.make_database()))


@contextmanager
def deployed_postgres_line(seed: int) -> Iterator[Deployment]:
    """A new server behind a proxy."""
    with (
        PostgresServer(profile=DURABLE) as server,
        FaultProxy(server.address, seed=seed, wire=PostgresWire) as proxy,
    ):
        yield _prepared(of_postgres_line(server, server.make_database(), proxy))


@contextmanager
def deployed_postgres_slow_line(seed: int) -> Iterator[Deployment]:
    """A new server whose workers are behind a slow line."""
    with (
        PostgresServer(profile=DURABLE) as server,
        FaultProxy(server.address, seed=seed, wire=PostgresWire) as proxy,
    ):
        plain = of_postgres(server, server.make_database())
        stresses = {"slow_line": slow_line(proxy)}
        url = proxy.url_for(plain.url)
        yield _prepared(replace(plain, name="postgres-slow-line", faults={}, stresses=stresses, worker_url=url, **SLOW))


@contextmanager
def deployed_postgres_clock(_seed: int) -> Iterator[Deployment]:
    """A new server with a clock of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as directory,
        stepped(Path(directory)) as clocks,
        PostgresServer(profile=DURABLE, prefix=clocks.server.prefix) as server,
    ):
        yield replace(
            _prepared(of_postgres(server, server.make_database())),
            name="postgres-clock",
            heal=clocks.heal,
            faults={},
            stresses=clocks.stresses,
            environment=clocks.host.environment,
            catch_up=catch_up(clocks.all),
        )


@contextmanager
def deployed_postgres_snapshot(_seed: int) -> Iterator[Deployment]:
    """A new server on which a transaction holds a snapshot, with tables that are vacuumed and analyzed often."""
    with PostgresServer(profile=DURABLE, autovacuum_naptime="5s") as server:
        database = server.make_database()
        stresses = {"hold_snapshot": hold_snapshot(server, database)}
        plain = _prepared(of_postgres(server, database))
        yield replace(
            plain,
            name="postgres-snapshot",
            faults={},
            stresses=stresses,
            lease="30s",
            per_second=_BESIDE_A_SNAPSHOT,
            spares_claims=True,
        )


@contextmanager
def deployed_patroni(_seed: int) -> Iterator[Deployment]:
    """A new cluster."""
    with PatroniCluster() as cluster:
        yield _prepared(of_patroni(cluster, cluster.make_database()))


def _prepared(deployment: Deployment) -> Deployment:
    """With its tables, as `holdfast migrate` makes them."""

    async def migrate() -> None:
        store = open_store(deployment.url)
        try:
            await store.migrate()
        finally:
            await store.close()

    asyncio.run(migrate())
    return deployment
