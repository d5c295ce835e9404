"""pgbouncer as tests use it: in transaction mode, where sessions do not last."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.support import eventually


@pytest.fixture
def bouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """In front of the shared server, with one connection for all clients of a database."""
    with PgBouncer(postgres_server, default_pool_size=1) as bouncer:
        yield bouncer


def test_transactions_of_different_clients_share_a_session(bouncer: PgBouncer, database: str) -> None:
    url = bouncer.url(database)
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
        pids = {client.execute("SELECT pg_backend_pid()").fetchone() for client in (one, other)}
        assert len(pids) == 1


def test_prepared_statements_break(bouncer: PgBouncer, database: str) -> None:
    url = bouncer.url(database)
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
        one.execute("SELECT 1", prepare=True)
        with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
            other.execute("SELECT 2", prepare=True)


def test_wrong_password_is_refused(bouncer: PgBouncer, database: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="SASL authentication failed"):
        psycopg.connect(bouncer.url(database, password="wrong"))


def test_clients_stay_while_the_server_restarts(
    bouncer: PgBouncer, postgres_server: PostgresServer, database: str
) -> None:
    with psycopg.connect(bouncer.url(database), autocommit=True) as client:
        client.execute("SELECT 1")
        postgres_server.restart(kill=True)
        eventually(lambda: _works(client), 30, "the client's next transaction is on the new server")


def _works(client: psycopg.Connection[tuple[int]]) -> bool:
    try:
        return bool(client.execute("SELECT 1").fetchone())
    except psycopg.OperationalError:
        assert not client.closed, "pgbouncer closed the connection"
        return False
