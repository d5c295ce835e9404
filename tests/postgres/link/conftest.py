"""A database with the functions that these tests call."""

from __future__ import annotations

import pytest

from tests.postgres.link.helpers import make_schema
from tests.servers.postgres import PostgresServer


@pytest.fixture
def url(postgres_server: PostgresServer, database: str) -> str:
    """The URL of a new database in which the functions of `helpers` are."""
    url = postgres_server.url(database)
    make_schema(url)
    return url
