"""The PostgreSQL servers that tests are run on do what tests rely on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import DURABLE
from tests.servers.postmaster import remove_shared_memory
from tests.servers.processes import own_directory, server_user
from tests.support import ROOT, alive, children_of, environment, eventually

CHILD = """
import signal
from tests.servers.postgres import PostgresServer
server = PostgresServer().start()
print(server.pid, flush=True)
signal.pause()
"""


def fill(server: PostgresServer, database: str = "postgres") -> None:
    server.query("CREATE TABLE numbers AS SELECT generate_series(1, 100) AS number", database=database)


def count(server: PostgresServer, database: str = "postgres") -> int:
    return int(server.value("SELECT count(*) FROM numbers", database=database))


def finish(connection: psycopg.Connection[Any]) -> None:
    """Reads the answer to a statement that was sent before."""
    assert connection.pgconn.get_result() is not None
    assert connection.pgconn.get_result() is None


def test_settings_are_keyword_arguments() -> None:
    with PostgresServer(max_connections=23, cluster_name="it's") as server:
        assert server.setting("max_connections") == "23"
        assert server.setting("cluster_name") == "it's"
        server.restart(max_connections=24)
        assert server.setting("max_connections") == "24"


def test_alter_is_seen_and_reset_takes_it_back(postgres_server: PostgresServer) -> None:
    before = postgres_server.setting("work_mem")
    postgres_server.alter(work_mem="12MB")
    assert postgres_server.setting("work_mem") == "12MB"
    postgres_server.reset()
    assert postgres_server.setting("work_mem") == before


@pytest.mark.parametrize("how", ["kill", "kill_postmaster", "stop"])
def test_data_outlives_the_process(how: str) -> None:
    with PostgresServer() as server:
        port, pid = server.port, server.pid
        fill(server)
        getattr(server, how)()
        assert not server.answers()
        server.start()
        assert server.port == port
        assert server.pid != pid
        assert count(server) == 100


def test_killed_server_leaves_no_backend() -> None:
    with PostgresServer() as server, server.connect() as connection:
        backends = [server.pid, *children_of(server.pid)]
        assert connection.info.backend_pid in backends
        server.kill()
        eventually(lambda: not any(map(alive, backends)), what="all are gone")


def test_frozen_server_keeps_connections_and_answers_later(postgres_server: PostgresServer) -> None:
    with postgres_server.connect() as connection:
        pid = connection.info.backend_pid
        postgres_server.freeze()
        connection.pgconn.send_query(b"SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            postgres_server.connect(connect_timeout=2).close()
        assert _state(pid) == _state(postgres_server.pid) == "T"
        postgres_server.thaw()
        finish(connection)
        assert postgres_server.answers()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_healed_server_is_whatever_it_was_before(postgres_server: PostgresServer) -> None:
    postgres_server.freeze()
    assert postgres_server.heal().answers()
    postgres_server.kill()
    assert postgres_server.heal().answers()


def test_terminated_backends_are_gone(postgres_server: PostgresServer, database: str) -> None:
    with postgres_server.connect(database) as ours, postgres_server.connect() as other:
        assert postgres_server.terminate_backends(f"datname = '{database}'") == 1
        with pytest.raises(psycopg.OperationalError):
            ours.execute("SELECT 1")
        other.execute("SELECT 1")


def test_each_test_has_a_database_of_its_own(postgres_server: PostgresServer, database: str) -> None:
    fill(postgres_server, database)
    other = postgres_server.make_database()
    with pytest.raises(psycopg.errors.UndefinedTable):
        count(postgres_server, other)
    postgres_server.drop_database(other)
    with psycopg.connect(postgres_server.url(database, application_name="some name")) as connection:
        assert connection.info.dbname == database
        assert connection.info.get_parameters()["application_name"] == "some name"


def test_durable_server_waits_for_the_disk(durable_postgres: PostgresServer) -> None:
    values = {name: durable_postgres.setting(name) for name in ("fsync", "full_page_writes", "synchronous_commit")}
    assert set(values.values()) == {"on"}


def test_password_is_asked_for() -> None:
    with PostgresServer(ask_password=True) as server:
        with psycopg.connect(server.url()) as connection:
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url(password="wrong"))


def test_standby_follows_and_is_waited_for() -> None:
    with PostgresServer(profile=DURABLE) as primary, primary.standby("second") as standby:
        primary.wait_for_standby("second")
        primary.alter(synchronous_standby_names="second")
        primary.wait_for_standby("second", "sync")
        fill(primary)
        assert standby.value("SELECT pg_is_in_recovery()")
        primary.kill()
        standby.promote()
        assert count(standby) == 100
        standby.query("INSERT INTO numbers VALUES (101)")


def test_commit_waits_while_the_standby_is_away() -> None:
    with PostgresServer() as primary, primary.standby() as standby:
        primary.alter(synchronous_standby_names="standby")
        primary.wait_for_standby(state="sync")
        standby.kill()
        with primary.connect() as connection:
            connection.pgconn.send_query(b"CREATE TABLE waiting ()")
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = %s"
            eventually(lambda: primary.query(waits, connection.info.backend_pid), what="the commit waits")
            standby.start()
            finish(connection)


def test_failure_shows_the_log() -> None:
    with pytest.raises(AssertionError, match="did not start") as caught:
        PostgresServer(no_such_setting=1).__enter__()
    assert "no_such_setting" in str(caught.value)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place for the files of a process that cannot remove them."""
    place = own_directory("holdfast-killed-", server_user())
    yield place
    for data in place.glob("*/data"):
        remove_shared_memory(data)
    shutil.rmtree(place)


def test_server_ends_with_the_process_that_started_it(directory: Path) -> None:
    place = environment(more={"TMPDIR": str(directory)})
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=place
    ) as child:
        assert child.stdout
        postmaster = int(child.stdout.readline())
        backends = eventually(lambda: children_of(postmaster))
        assert alive(postmaster)
        os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: not any(map(alive, [postmaster, *backends])), what="the server is gone")
