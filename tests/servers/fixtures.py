"""Fixtures: shared servers, whole and empty at the beginning of each test.

A conftest imports the ones that its tests use.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.cluster import RedisCluster
from tests.servers.flavours import FLAVOURS, Flavour
from tests.servers.redis_server import RedisServer
from tests.servers.sentinels import Sentinels
from tests.servers.shared import shared_cluster, shared_durable_server, shared_sentinels, shared_server


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Each of Redis and Valkey in turn."""
    name: Flavour = request.param
    return name


@pytest.fixture
def any_server(flavour: Flavour) -> Iterator[RedisServer]:
    """Redis and Valkey in turn, without persistence."""
    yield from _whole_and_empty(shared_server(flavour))


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """Redis 7.0, without persistence."""
    yield from _whole_and_empty(shared_server("redis"))


@pytest.fixture
def valkey_server() -> Iterator[RedisServer]:
    """Valkey 9, without persistence."""
    yield from _whole_and_empty(shared_server("valkey"))


@pytest.fixture
def durable_server() -> Iterator[RedisServer]:
    """Redis 7.0 with `appendfsync always`."""
    yield from _whole_and_empty(shared_durable_server("redis"))


@pytest.fixture
def redis_cluster() -> RedisCluster:
    """Three masters and three replicas of Redis 7.0, strict."""
    cluster = shared_cluster("redis").heal()
    cluster.flush()
    return cluster


@pytest.fixture
def redis_sentinels() -> Sentinels:
    """A master, a replica and three Sentinels of Redis 7.0, strict."""
    sentinels = shared_sentinels("redis").heal()
    sentinels.master.flush()
    return sentinels


def _whole_and_empty(server: RedisServer) -> Iterator[RedisServer]:
    server.heal()
    server.reset()
    yield server
