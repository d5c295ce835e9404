"""The line to a PostgreSQL server loses what it says it loses, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_wire import PostgresWire
from tests.servers.proxy import FaultProxy, LineFaults
from tests.support import eventually

FUNCTION = """
CREATE TABLE numbers (number int);
CREATE FUNCTION public.note(given int) RETURNS int LANGUAGE sql AS
    'INSERT INTO numbers VALUES (given) RETURNING number'
"""


@pytest.fixture
def line(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_server.address, wire=PostgresWire) as proxy:
        yield proxy


class Client:
    """Connects again whenever its connection was lost."""

    def __init__(self, line: FaultProxy, url: str) -> None:
        self._url = line.url_for(url)
        self._connection: psycopg.Connection[Any] | None = None

    def execute(self, sql: str, **options: Any) -> list[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True)
        cursor = self._connection.execute(sql.encode(), **options)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._connection:
            self._connection.close()


@pytest.fixture
def client(line: FaultProxy, database_url: str) -> Iterator[Client]:
    made = Client(line, database_url)
    yield made
    made.close()


def outcomes(call: Callable[[], object], times: int) -> list[bool]:
    """For each call, whether its reply arrived."""
    arrived = []
    for _ in range(times):
        try:
            call()
            arrived.append(True)
        except psycopg.OperationalError:
            arrived.append(False)
    return arrived


def test_good_line_changes_nothing(line: FaultProxy, client: Client) -> None:
    assert client.execute("CREATE TABLE numbers AS SELECT generate_series(1, 100000) AS number") == []
    assert len(client.execute("TABLE numbers")) == 100_000
    assert client.execute("TABLE numbers", prepare=True) == client.execute("TABLE numbers", prepare=True)
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("VALUES (1 / 0)")
    assert line.struck.dropped == 0
    assert line.struck.replies == 6  # one more for the preparation
    assert line.struck.connections == 1


def test_password_is_asked_for_through_the_line() -> None:
    with PostgresServer(ask_password=True) as server, FaultProxy(server.address, wire=PostgresWire) as line:
        with psycopg.connect(line.url_for(server.url())) as connection:
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(line.url_for(server.url(password="wrong")))


def test_every_third_reply_is_lost_and_its_request_was_done(
    line: FaultProxy, client: Client, postgres_server: PostgresServer, database: str
) -> None:
    postgres_server.query(FUNCTION, database=database)
    line.strike(LineFaults(drop_every=3, torn_share=0.5))
    assert outcomes(lambda: client.execute("SELECT * FROM public.note(1)"), 12) == [True, True, False] * 4
    assert postgres_server.value("SELECT count(*) FROM numbers", database=database) == 12
    assert line.struck.dropped_by_command == {"note": 4}


def test_lost_answer_to_a_commit(line: FaultProxy, database_url: str, postgres_server: PostgresServer) -> None:
    line.strike(LineFaults(drop_every=1, commands=frozenset({"COMMIT"})))
    database = database_url.rpartition("/")[2]
    postgres_server.query("CREATE TABLE numbers (number int)", database=database)
    with (
        pytest.raises(psycopg.OperationalError),
        psycopg.connect(line.url_for(database_url)) as connection,
    ):
        connection.execute("INSERT INTO numbers VALUES (1)")
    assert postgres_server.value("SELECT count(*) FROM numbers", database=database) == 1


def test_notifications_arrive_while_nothing_is_asked(
    line: FaultProxy, database_url: str, postgres_server: PostgresServer, database: str
) -> None:
    with psycopg.connect(line.url_for(database_url), autocommit=True) as connection:
        connection.execute("LISTEN bell")
        postgres_server.query("NOTIFY bell, 'rung'", database=database)
        assert [notify.payload for notify in connection.notifies(timeout=10, stop_after=1)] == ["rung"]


def test_copy_goes_through(line: FaultProxy, client: Client, database_url: str) -> None:
    client.execute("CREATE TABLE numbers (number int)")
    with psycopg.connect(line.url_for(database_url), autocommit=True) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY numbers FROM STDIN") as copy:
            for number in range(1_000):
                copy.write_row((number,))
        with cursor.copy("COPY numbers TO STDOUT") as copy:
            assert len(list(copy.rows())) == 1_000


def test_terminated_backend_says_why(line: FaultProxy, client: Client, postgres_server: PostgresServer) -> None:
    client.execute("SELECT 1")
    postgres_server.terminate_backends()
    with pytest.raises(psycopg.errors.AdminShutdown):
        client.execute("SELECT 1")


def test_cut_line_is_a_lost_connection(line: FaultProxy, client: Client) -> None:
    client.execute("SELECT 1")
    eventually(lambda: not line.pending(), what="nothing is under way")
    assert line.cut() == 1
    assert outcomes(lambda: client.execute("SELECT 1"), 2) == [False, True]
