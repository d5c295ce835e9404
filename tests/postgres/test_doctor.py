"""What `holdfast doctor` hears about a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.stores.contract import Finding
from holdfast.stores.postgres.doctor import probe
from tests.postgres.link.helpers import opened
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import DURABLE


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that keeps what it is told, and allows what holds dead rows."""
    with PostgresServer(profile=DURABLE, max_prepared_transactions=2) as server:
        yield server


def findings(server: PostgresServer, check: str, *, old_seconds: float = 60.0, **options: str) -> list[Finding]:
    """What is said about one thing."""

    async def scenario() -> list[Finding]:
        async with opened(server.url(), **options) as database:
            found = await probe(database, old_transaction_seconds=old_seconds)
            assert all("\n" not in finding.text for finding in found)
            return [finding for finding in found if finding.check == check]

    return asyncio.run(scenario())


def the_one(found: list[Finding], level: str) -> str:
    (finding,) = found
    assert finding.level == level
    return finding.text


def test_good_server(server: PostgresServer) -> None:
    assert the_one(findings(server, "server"), "ok").startswith("PostgreSQL 15")
    assert "survives kill -9 and power loss" in the_one(findings(server, "persistence"), "ok")
    assert the_one(findings(server, "dead rows"), "ok")
    assert "a full disk under pg_wal stops the server" in the_one(findings(server, "disk"), "note")
    assert findings(server, "pooler") + findings(server, "commits") + findings(server, "autovacuum") == []


def test_fast_server_is_dangerous(postgres_server: PostgresServer) -> None:
    texts = [finding.text for finding in findings(postgres_server, "persistence") if finding.level == "problem"]
    assert [text.split(":")[0] for text in texts] == ["fsync off", "full_page_writes off"]


def test_commits_that_do_not_wait(postgres_server: PostgresServer) -> None:
    postgres_server.alter(synchronous_commit="off")
    assert "in a transaction of yours can be lost" in the_one(findings(postgres_server, "commits"), "warning")


def test_autovacuum_is_off(postgres_server: PostgresServer) -> None:
    postgres_server.alter(autovacuum=False)
    assert "set autovacuum = on" in the_one(findings(postgres_server, "autovacuum"), "problem")


@pytest.mark.parametrize(
    ("durability", "effect"), [("replicated", "waits for no standby"), ("strict", "writes nothing")]
)
def test_no_synchronous_standby(server: PostgresServer, durability: str, effect: str) -> None:
    text = the_one(findings(server, "standbys", durability=durability), "problem")
    assert f"synchronous_standby_names is empty: durability={durability} {effect}" in text


def test_no_standby_at_all(server: PostgresServer) -> None:
    assert "all is lost with the disk of this server" in the_one(findings(server, "standbys"), "note")


def test_standby_that_is_not_there(postgres_server: PostgresServer) -> None:
    postgres_server.alter(synchronous_standby_names="nobody")
    text = the_one(findings(postgres_server, "standbys", durability="strict"), "problem")
    assert "no standby of 'nobody' is connected" in text


def test_standby_that_is_there() -> None:
    with PostgresServer() as primary, primary.standby("mate"):
        primary.wait_for_standby("mate")
        assert the_one(findings(primary, "standbys"), "note").startswith("1, not waited for")
        primary.alter(synchronous_standby_names="mate")
        primary.wait_for_standby("mate", "sync")
        text = the_one(findings(primary, "standbys", durability="strict"), "ok")
        assert text == "1 synchronous, as durability=strict needs"


def test_transaction_that_holds_the_horizon_back_is_named(server: PostgresServer) -> None:
    with server.connect(application_name="a report") as holder, holder.transaction():
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        text = the_one(findings(server, "dead rows", old_seconds=0.0), "warning")
        assert f"(a report of postgres, pid {holder.info.backend_pid}, idle in transaction)" in text
        assert f"pg_terminate_backend({holder.info.backend_pid})" in text
        # A young transaction is nothing to worry about.
        assert the_one(findings(server, "dead rows"), "ok")


def test_prepared_transaction_is_named(server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE half (id int)")
        connection.execute("PREPARE TRANSACTION 'half done'")
        try:
            text = the_one(findings(server, "dead rows"), "warning")
        finally:
            connection.execute("ROLLBACK PREPARED 'half done'")
    assert "end it: ROLLBACK PREPARED 'half done'" in text


def test_abandoned_slot_is_named(server: PostgresServer) -> None:
    server.query("SELECT pg_create_physical_replication_slot('left_behind', true)")
    try:
        text = the_one(findings(server, "dead rows"), "warning")
    finally:
        server.query("SELECT pg_drop_replication_slot('left_behind')")
    assert "pg_drop_replication_slot('left_behind')" in text


def test_user_without_privileges_may_ask(server: PostgresServer) -> None:
    server.query("DROP ROLE IF EXISTS joe")
    server.query("CREATE ROLE joe LOGIN PASSWORD 'p@ss:word/1'")

    async def scenario() -> None:
        async with opened(server.url(user="joe")) as database:
            assert not [finding for finding in await probe(database) if finding.level == "problem"]

    asyncio.run(scenario())
