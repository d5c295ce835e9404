"""An app on a database of its own, empty at the beginning of each test, with a table of the application's own."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.postgres.transactions.enqueue.sessions import KINDS, Writer, opened
from tests.postgres.transactions.enqueue.shop import Shop, make_app
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_shared import shared_postgres

_OUR_TABLES = """
SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname = 'holdfast' AND tablename <> 'migrations'
"""


@pytest.fixture(scope="module")
def shop_database() -> Iterator[str]:
    server = shared_postgres()
    server.heal()
    name = server.make_database()
    yield name
    server.heal()
    server.drop_database(name)


@pytest.fixture
def shop(postgres_server: PostgresServer, shop_database: str) -> Iterator[Shop]:
    url = postgres_server.url(shop_database)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("CREATE TABLE IF NOT EXISTS orders (name text NOT NULL)")
        tables = ["orders", *(name for (name,) in connection.execute(_OUR_TABLES.encode()))]
        connection.execute(f"TRUNCATE {', '.join(tables)}".encode())
    with make_app(url) as app:
        yield Shop(app, url)


@pytest.fixture(params=list(KINDS))
def writer(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Writer]:
    with opened(request.param, shop.url) as writer:
        yield writer
