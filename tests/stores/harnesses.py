"""The harnesses of the stores that this package ships, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.stores.contract import Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.faulty import FaultyStore, no_faults
from holdfast.testing.kit.harness import DecoratedHarness, SqliteHarness, SqliteMemoryHarness, StoreHarness
from tests.postgres.harness import postgres_harness
from tests.servers.harness import cluster_harness, server_harness
from tests.servers.postgres_shared import shared_durable_postgres
from tests.servers.shared import shared_cluster, shared_durable_server


def _faultless(store: Store, _clock: SteppedClock) -> Store:
    return FaultyStore(store, no_faults())


#: Servers are started by the first harness that needs them, and shared by all.
HARNESSES: dict[str, Callable[[Path], StoreHarness]] = {
    "sqlite-file": SqliteHarness,
    "sqlite-memory": lambda _directory: SqliteMemoryHarness(),
    "faulty-without-faults": lambda directory: DecoratedHarness(SqliteHarness(directory), _faultless),
    "redis": lambda _directory: server_harness(shared_durable_server("redis")),
    "valkey": lambda _directory: server_harness(shared_durable_server("valkey")),
    "redis-cluster": lambda _directory: cluster_harness(shared_cluster("redis")),
    "valkey-cluster": lambda _directory: cluster_harness(shared_cluster("valkey")),
    "postgres": lambda _directory: postgres_harness(shared_durable_postgres()),
}
