"""The servers that these tests share, whole at the beginning of each test, and a database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_shared import shared_durable_postgres, shared_postgres


@pytest.fixture
def postgres_server() -> PostgresServer:
    """One server for the whole session that does not wait for the disk."""
    return _whole(shared_postgres())


@pytest.fixture
def durable_postgres() -> PostgresServer:
    """One server for the whole session with `fsync` and `synchronous_commit`."""
    return _whole(shared_durable_postgres())


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a new database on `postgres_server`."""
    yield from _new_database(postgres_server)


@pytest.fixture
def database_url(postgres_server: PostgresServer, database: str) -> str:
    """The URL of a new database on `postgres_server`."""
    return postgres_server.url(database)


@pytest.fixture
def durable_database(durable_postgres: PostgresServer) -> Iterator[str]:
    """The name of a new database on `durable_postgres`."""
    yield from _new_database(durable_postgres)


@pytest.fixture
def durable_database_url(durable_postgres: PostgresServer, durable_database: str) -> str:
    """The URL of a new database on `durable_postgres`."""
    return durable_postgres.url(durable_database)


def _whole(server: PostgresServer) -> PostgresServer:
    server.heal()
    server.reset()
    return server


def _new_database(server: PostgresServer) -> Iterator[str]:
    name = server.make_database()
    yield name
    server.heal()
    server.drop_database(name)
