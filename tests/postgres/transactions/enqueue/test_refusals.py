"""What cannot work is told in one line that says what to do, and nothing is recorded."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import Holdfast
from holdfast.errors import BadOption, HoldfastError, StoreError, StoreUnavailable
from tests.postgres.transactions.enqueue.sessions import KINDS, configure_django, opened
from tests.postgres.transactions.enqueue.shop import Shop, make_app
from tests.servers.postgres import PostgresServer
from tests.support import ROOT, environment

#: One for each way in which errors of the server reach us.
LIBRARIES = ["psycopg", "psycopg async", "sqlalchemy session", "sqlalchemy async session", "django"]


def _line(refused: pytest.ExceptionInfo[HoldfastError]) -> str:
    text = str(refused.value)
    assert "\n" not in text
    return text


def _refusal(app: Holdfast, transaction: Any, *, is_async: bool = False) -> str:
    """The line that a caller with this transaction gets."""
    ship = app.task_types["ship"].using(transaction=transaction)
    with pytest.raises(BadOption) as refused:
        asyncio.run(ship.aenqueue("a")) if is_async else ship.enqueue("a")
    return _line(refused)


@pytest.fixture
def other_url(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.make_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


def test_stores_without_transactions(shop: Shop, tmp_path: Path) -> None:
    urls = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/one.db,{shop.url}"
    for url in urls:
        with make_app(url) as app, opened("psycopg", shop.url) as session:
            line = _refusal(app, session.transaction)
            assert "only a store that is one PostgreSQL database" in line
            assert "enqueue after your commit" in line


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "async" in kind])
def test_async_transaction_in_a_sync_call(shop: Shop, kind: str) -> None:
    with opened(kind, shop.url) as session:
        assert "await ….aenqueue" in _refusal(shop.app, session.transaction)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "async" not in kind])
def test_sync_transaction_in_an_async_call(shop: Shop, kind: str) -> None:
    with opened(kind, shop.url) as session:
        assert "….enqueue(…)" in _refusal(shop.app, session.transaction, is_async=True)


def test_what_is_no_transaction(shop: Shop) -> None:
    from django.db import transaction
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.orm import sessionmaker

    configure_django(shop.url)
    engine = create_engine("postgresql+psycopg://")
    things = ["text", 3, engine, sessionmaker(engine), create_async_engine("postgresql+asyncpg://")]
    for thing in [*things, sqlite3.connect(":memory:"), transaction.atomic(), psycopg, shop.app]:
        assert "give a connection of psycopg" in _refusal(shop.app, thing)
        assert "give a connection of psycopg" in _refusal(shop.app, thing, is_async=True)


def test_autocommit_of_psycopg(shop: Shop) -> None:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        assert "with connection.transaction()" in _refusal(shop.app, connection)
        with connection.transaction():
            shop.ship.using(transaction=connection).enqueue("a")
        with connection.pipeline():
            assert "with connection.transaction()" in _refusal(shop.app, connection)
            with connection.transaction():
                shop.ship.using(transaction=connection).enqueue("b")
    assert shop.tasks() == ["a", "b"]


def test_autocommit_of_async_psycopg(shop: Shop) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(shop.url, autocommit=True) as connection:
            ship = shop.ship.using(transaction=connection)
            with pytest.raises(BadOption, match=r"with connection.transaction\(\)"):
                await ship.aenqueue("no")
            async with connection.pipeline(), connection.transaction():
                await ship.aenqueue("a")

    asyncio.run(run())
    assert shop.tasks() == ["a"]


def test_autocommit_of_sqlalchemy(shop: Shop) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.orm import Session

    engine = create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with Session(engine) as session, engine.connect() as connection:
        assert "leave isolation_level='AUTOCOMMIT' out" in _refusal(shop.app, session)
        assert "leave isolation_level='AUTOCOMMIT' out" in _refusal(shop.app, connection)
    engine.dispose()

    async def run() -> None:
        url = shop.url.replace("postgresql:", "postgresql+asyncpg:")
        aengine = create_async_engine(url, isolation_level="AUTOCOMMIT")
        async with aengine.connect() as connection:
            with pytest.raises(BadOption, match="leave isolation_level='AUTOCOMMIT' out"):
                await shop.ship.using(transaction=connection).aenqueue("no")
        await aengine.dispose()

    asyncio.run(run())
    assert shop.tasks() == []


def test_autocommit_of_django(shop: Shop) -> None:
    from django.db import connection

    configure_django(shop.url)
    assert "with transaction.atomic()" in _refusal(shop.app, connection)
    connection.set_autocommit(False)
    shop.ship.using(transaction=connection).enqueue("by hand")
    connection.commit()
    connection.close()
    assert shop.tasks() == ["by hand"]


@pytest.mark.parametrize("kind", LIBRARIES)
def test_another_database(shop: Shop, other_url: str, kind: str) -> None:
    with opened(kind, other_url) as session:
        with pytest.raises(BadOption) as refused:
            session.enqueue(shop.ship, "a")
        session.rollback()
    line = _line(refused)
    assert "has no schema 'holdfast'" in line
    assert "use a session of the store's own database" in line
    assert Shop(shop.app, other_url).tasks() == []


@pytest.mark.parametrize("kind", LIBRARIES)
def test_another_database_with_a_store_of_its_own(shop: Shop, other_url: str, kind: str) -> None:
    with make_app(other_url) as other_app:
        other = Shop(other_app, other_url)
        other.ship.enqueue("theirs")
        with opened(kind, other_url) as session:
            with pytest.raises(BadOption) as refused:
                session.enqueue(shop.ship, "a")
            session.enqueue(other.ship, "after")  # the transaction is still whole
            session.commit()
        assert "has a store of its own" in _line(refused)
        assert other.tasks() == ["after", "theirs"]
        assert shop.tasks() == []


def test_session_of_another_kind_of_database(shop: Shop) -> None:
    from django.db import connections
    from sqlalchemy import create_engine

    configure_django(shop.url, "lite", ENGINE="django.db.backends.sqlite3", NAME=":memory:")
    with create_engine("sqlite://").connect() as connection:
        assert "one of a sqlite database" in _refusal(shop.app, connection)
    assert "one of a sqlite database" in _refusal(shop.app, connections["lite"])
    connections["lite"].close()


def test_store_that_was_made_anew_is_found_again(shop: Shop) -> None:
    with opened("psycopg", shop.url) as session:
        session.enqueue(shop.ship, "before")
        session.commit()
        session.execute("SET client_min_messages = error")
        session.execute("DROP SCHEMA holdfast CASCADE")
        session.commit()
        shop.ship.enqueue("between")
        session.enqueue(shop.ship, "after")
        session.commit()
    assert shop.tasks() == ["after", "between"]


def test_role_needs_no_more_than_the_use_of_the_schema(shop: Shop, postgres_server: PostgresServer) -> None:
    role = shop.url.rpartition("/")[2].replace("test_", "web_")
    shop.query(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    shop.query(f"GRANT INSERT ON orders TO {role}")
    url = postgres_server.url(shop.url.rpartition("/")[2], user=role, password="secret")
    try:
        shop.ship.enqueue("a")
        with opened("psycopg", url) as session:
            with pytest.raises(StoreError) as refused:
                session.enqueue(shop.ship, "no")
            assert "GRANT USAGE ON SCHEMA holdfast" in _line(refused)
            session.rollback()
            shop.query(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
            session.execute("INSERT INTO orders VALUES ('b')")
            session.enqueue(shop.ship, "b")
            session.commit()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute("SELECT FROM holdfast.tasks")
    finally:
        shop.query(f"DROP OWNED BY {role}")
        shop.query(f"DROP ROLE {role}")
    assert shop.tasks() == ["a", "b"]


def test_transaction_that_has_failed(shop: Shop) -> None:
    with opened("psycopg", shop.url) as session:
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.execute("SELECT 1 / 0")
        assert "roll it back first" in _refusal(shop.app, session.transaction)


def test_what_the_driver_says_is_not_hidden(shop: Shop) -> None:
    with opened("psycopg", shop.url) as session:
        session.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            session.enqueue(shop.ship, "a")


def test_commit_that_cannot_be_as_safe_as_the_store_promises(shop: Shop) -> None:
    with make_app(f"{shop.url}?durability=strict&deadline=1s") as strict, opened("psycopg", shop.url) as session:
        shop.ship.enqueue("so that there is a store")
        with pytest.raises(StoreUnavailable) as refused:
            session.enqueue(strict.task_types["ship"], "a")
        session.commit()
    assert "no synchronous standby" in _line(refused)
    assert shop.tasks() == ["so that there is a store"]


def test_calls_of_several_transactions_at_once(shop: Shop) -> None:
    with opened("psycopg", shop.url) as first, opened("psycopg", shop.url) as second:
        within = [shop.ship.using(transaction=session.transaction).prepare("a") for session in (first, second)]
        for calls in (within, [within[0], shop.ship.prepare("b")], [shop.ship.prepare("b"), within[0]]):
            with pytest.raises(BadOption, match="calls of one transaction"):
                shop.app.enqueue_many(calls)
        for session in (first, second):
            session.commit()
    assert shop.tasks() == []


def test_cursors_of_the_callers_own_kind(shop: Shop) -> None:
    with psycopg.connect(shop.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
        shop.ship.using(transaction=connection).enqueue("a")
    assert shop.tasks() == ["a"]


def test_sessions_that_are_looked_up(shop: Shop) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import scoped_session, sessionmaker

    engine = create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"))
    sessions = scoped_session(sessionmaker(engine))
    shop.ship.using(transaction=sessions).enqueue("a")
    sessions.commit()
    sessions.remove()
    engine.dispose()
    assert shop.tasks() == ["a"]


_LEAN = """
import sys, psycopg
from tests.postgres.transactions.enqueue.shop import make_app

url = sys.argv[1]
with make_app(url) as app, psycopg.connect(url) as connection:
    app.task_types["ship"].using(transaction=connection).enqueue("a")
assert not {"sqlalchemy", "django"} & set(sys.modules)
"""


def test_libraries_that_the_caller_does_not_use_are_not_imported(shop: Shop) -> None:
    command = [sys.executable, "-c", _LEAN, shop.url]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert shop.tasks() == ["a"]
