"""Opening: every way in which a file can be wrong gives one clear line."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from holdfast.errors import BadUrl, HoldfastError, StoreTooNew
from holdfast.stores.open import open_store, redacted, sqlite_path
from holdfast.stores.sqlite.connection import APPLICATION_ID, PACKAGE, connect, migrate
from holdfast.stores.sqlite.transaction import SQL
from holdfast.stores.sqltext import load_migrations


async def _counts(url: str) -> None:
    store = open_store(url)
    try:
        await store.counts()
    finally:
        await store.close()


def refusal(url: str) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        asyncio.run(_counts(url))
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = refusal(f"sqlite:///{tmp_path}/nowhere/holdfast.db")
    assert isinstance(error, BadUrl)
    assert "does not exist" in str(error)


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    assert "it is a folder" in str(refusal(f"sqlite:///{tmp_path}"))


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader, " * 500)
    error = refusal(f"sqlite:///{letter}")
    assert isinstance(error, BadUrl)
    assert "is not a SQLite database" in str(error)
    assert letter.read_text() == "Dear reader, " * 500


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    assert "another program" in str(refusal(f"sqlite:///{path}"))
    assert apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema").fetchall() == [("songs",)]


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "holdfast.db")
    connection = connect(path)
    migrate(connection, path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    error = refusal(f"sqlite:///{path}")
    assert isinstance(error, StoreTooNew)
    assert "upgrade" in str(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:  # pragma: no cover
    tmp_path.chmod(0o500)
    assert "no permission" in str(refusal(f"sqlite:///{tmp_path}/holdfast.db"))


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("sqlite:/holdfast.db", "sqlite:///"),
        ("sqlite://holdfast.db", "too few slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///x.db?mode=ro", "takes no options"),
        ("mysql://root:secret@host/x", "not a store URL"),
        ("postgresql://ann:secret@host", "the name of the database is missing"),
        ("redis://:secret@/0", "a host is missing"),
        ("holdfast.db", "not a store URL"),
        ("", "not a store URL"),
    ],
)
def test_a_bad_url_is_explained_without_its_password(url: str, part: str) -> None:
    with pytest.raises(BadUrl) as caught:
        open_store(url)
    assert part in str(caught.value)
    assert "secret" not in str(caught.value)


def test_paths_of_urls() -> None:
    assert sqlite_path("sqlite://") == ""
    assert sqlite_path("sqlite:///holdfast.db") == "holdfast.db"
    assert sqlite_path("sqlite:////var/lib/holdfast.db") == "/var/lib/holdfast.db"
    assert sqlite_path("sqlite:///with%20space.db") == "with space.db"


def test_a_redacted_url_keeps_everything_but_the_password() -> None:
    assert redacted("postgresql://ann:secret@db:5432/x?y=1") == "postgresql://ann:***@db:5432/x?y=1"
    assert redacted("sqlite:///holdfast.db") == "sqlite:///holdfast.db"


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _, _ in load_migrations(PACKAGE)] == list(range(1, len(load_migrations(PACKAGE)) + 1))


def test_the_query_for_a_claim_walks_the_index_and_sorts_nothing() -> None:
    from holdfast.stores.sqlite.reserving import _claim_statement

    connection = connect("")
    migrate(connection, "")
    for types in (1, 3, 900):
        bindings = {f"type{n}": f"t{n}" for n in range(types)}
        bindings |= dict.fromkeys(("queue", "limit", "epoch", "claim_id", "worker_id", "now", "lease_ms"), "1")
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + _claim_statement(types), bindings)]
        assert not [line for line in plan if "SCAN tasks" in line]
        if types < 400:
            assert not [line for line in plan if "TEMP B-TREE" in line], plan


@pytest.mark.parametrize(
    "name", ["before_enqueue", "promote", "deadlines_passed", "schedules_due", "rank_again", "oldest_by_step"]
)
def test_what_is_asked_for_all_the_time_is_found_by_an_index(name: str) -> None:
    connection = connect("")
    migrate(connection, "")
    bindings = dict.fromkeys(("now", "limit", "before", "queue", "step_ms"), 1)
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + SQL[name], bindings)]
    assert not [line for line in plan if line.startswith("SCAN") and line not in ("SCAN CONSTANT ROW", "SCAN steps")]
    assert not [line for line in plan if "TEMP B-TREE" in line]


def test_a_foreign_database_does_not_even_change_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    before = path.read_bytes()
    refusal(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_new_file_can_be_opened_by_many_at_once(tmp_path: Path) -> None:
    def open_one(path: str) -> list[str]:
        connection = connect(path)
        steps = migrate(connection, path)
        connection.close()
        return steps

    with ThreadPoolExecutor(8) as threads:
        for attempt in range(30):
            steps = list(threads.map(open_one, [f"{tmp_path}/{attempt}.db"] * 8))
            assert sum(map(len, steps)) == len(load_migrations(PACKAGE))


def test_a_file_of_an_older_version_becomes_what_a_new_one_is(tmp_path: Path) -> None:
    def schema(path: Path) -> list[tuple[object, ...]]:
        connection = apsw.Connection(str(path))
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()
        found.append((connection.pragma("user_version"), connection.pragma("application_id")))
        connection.close()
        return found

    migrations = load_migrations(PACKAGE)
    for version in range(1, len(migrations) + 1):
        old = tmp_path / f"old-{version}.db"
        connection = apsw.Connection(str(old))
        for _, _, text in migrations[:version]:
            connection.execute(text)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}")
        connection.close()
        asyncio.run(_counts(f"sqlite:///{old}"))
        new = tmp_path / f"new-{version}.db"
        asyncio.run(_counts(f"sqlite:///{new}"))
        assert schema(old) == schema(new)
