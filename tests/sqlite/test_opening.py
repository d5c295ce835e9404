"""Opening: every way in which a file can be wrong gives one clear line."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from holdfast import Holdfast
from holdfast.errors import BadUrl, HoldfastError, StoreError, StoreTooNew, StoreUnavailable
from holdfast.stores.open import open_store, redacted, resolved, split_urls, sqlite_path
from holdfast.stores.sqlite.connection import connect, disconnect
from holdfast.stores.sqlite.errors import translated
from holdfast.stores.sqlite.schema import APPLICATION_ID, PACKAGE
from holdfast.stores.sqlite.transaction import SQL
from holdfast.stores.sqltext import load_migrations
from tests.support import run_worker


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
    connection, _ = connect(path)
    connection.execute("PRAGMA user_version = 999")
    disconnect(connection)
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
        ("amqp://ann:secret@x", "not a store URL"),
        ("redis:localhost", "two slashes are missing after redis:"),
        ("redis:ann:secret@localhost", "two slashes are missing after redis:"),
    ],
)
def test_a_bad_url_is_explained_without_its_password(url: str, part: str) -> None:
    with pytest.raises(BadUrl) as caught:
        open_store(url)
    assert part in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["amqp://x", "redis:localhost", "sqlite:x.db", "holdfast.db", "mysql://x/y"])
def test_an_app_with_a_url_of_no_known_kind_is_refused_when_it_is_made(url: str) -> None:
    with pytest.raises(BadUrl, match=r"is not a store URL.*; write sqlite:///holdfast\.db, redis://"):
        Holdfast(url)


def test_a_lock_that_another_program_holds_for_long_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "holdfast.db")
    monkeypatch.setattr("holdfast.stores.sqlite.connection.BUSY_WARN_SECONDS", 0.01)
    connection, _ = connect(path)
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            other.execute("ROLLBACK")

    release = Release()
    logging.getLogger("holdfast.stores").addHandler(release)
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    finally:
        logging.getLogger("holdfast.stores").removeHandler(release)
        other.close()
        disconnect(connection)
    (warning,) = caplog.messages
    assert warning == f"{path}: another program has held its write lock for 0.01 s; still waiting"


def test_paths_of_urls() -> None:
    assert sqlite_path("sqlite://") == ""
    assert sqlite_path("sqlite:///holdfast.db") == "holdfast.db"
    assert sqlite_path("sqlite:////var/lib/holdfast.db") == "/var/lib/holdfast.db"
    assert sqlite_path("sqlite:///with%20space.db") == "with space.db"


def test_the_full_path_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b,%"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (url,) = {resolved("sqlite:///tasks%20of%20mine.db"), resolved("sqlite:///./x/../tasks%20of%20mine.db")}
    assert sqlite_path(url) == f"{folder}/tasks of mine.db"
    assert resolved(url) == url
    for other in ("sqlite://", f"sqlite:///{tmp_path}/x.db", "redis://localhost/0", "sqlite:///x.db?mode=ro"):
        assert resolved(other) == other
    assert resolved("sqlite:///a.db,sqlite:////b.db").endswith("/a.db,sqlite:////b.db")
    folder.rmdir()
    with pytest.raises(BadUrl, match="a folder that was deleted"):
        resolved("sqlite:///tasks.db")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("rediss://h?deadline=5s&ca=tls%2Fmy+ca.crt", "deadline=5s&ca={}/tls/my%20ca.crt"),
        ("https://token@h/tasks?ca=./ca.crt", "ca={}/ca.crt"),
        (
            "postgresql://h/db?sslmode=verify-full&sslrootcert=a,b.crt&sslcert=../c.crt&sslkey=/etc/k&sslcrl=l&passfile=p",
            "sslmode=verify-full&sslrootcert={0}/a%2Cb.crt&sslcert={1}/c.crt&sslkey=/etc/k&sslcrl={0}/l&passfile={0}/p",
        ),
        ("postgresql://h/db?sslmode=verify-full&sslrootcert=system", "sslmode=verify-full&sslrootcert=system"),
        ("rediss://h?ca=", "ca="),
    ],
)
def test_files_that_options_name_are_found_once(
    url: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    monkeypatch.chdir(folder)
    place, _, _ = url.partition("?")
    app = Holdfast(url)
    monkeypatch.chdir(tmp_path)
    assert app.url == f"{place}?{options.format(folder, tmp_path)}" == resolved(app.url)
    assert resolved(f"{app.url},{app.url}") == f"{app.url},{app.url}"


def test_an_app_stays_with_its_file_when_the_folder_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    with Holdfast("sqlite:///tasks.db") as app:
        handle = app.task(name="t")(_counts_of).enqueue()
        monkeypatch.chdir(elsewhere)
        assert handle.status().task_id == handle.task_id
        assert str(here) in repr(app)
    assert list(elsewhere.iterdir()) == []


CHANGES_FOLDER = """
import os, pathlib, tempfile
from holdfast import Holdfast, Retry, current

app = Holdfast(retry=Retry(base="1ms"))

@app.task
def charges(log: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        current().once("order-1", lambda: charge(log))
    assert current().attempt > 1  # in a folder that is gone by now

def charge(log: str) -> str:
    with open(log, "a") as out:
        out.write("charged\\n")
    return "receipt"
"""


def test_a_task_that_changes_the_folder_is_charged_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CHANGES_FOLDER)
    log = tmp_path / "log"
    worker = run_worker("shop:app", "sqlite:///holdfast.db", cwd=tmp_path)
    with Holdfast(f"sqlite:///{tmp_path}/holdfast.db") as app, worker:
        app.task(name="shop.charges")(_charges).enqueue(str(log)).result(90)
    assert log.read_text() == "charged\n"


def _charges(log: str) -> None:
    raise NotImplementedError(log)  # run by the worker


def _counts_of() -> None: ...


def test_a_redacted_url_keeps_everything_but_the_password() -> None:
    assert redacted("postgresql://ann:secret@db:5432/x?y=1") == "postgresql://ann:***@db:5432/x?y=1"
    assert redacted("sqlite:///holdfast.db") == "sqlite:///holdfast.db"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hush,redis://sh@localhost",
        "redis://joe:hush,rediss://sh@localhost:6379/0",
        "redis://a:6379/0,redis://joe:hush,redis://sh@b:6379/0",
        "postgresql://joe:hush,postgresql://sh@db/tasks",
        "https://hush:hush,https://sh@server.example",
    ],
)
def test_a_comma_and_a_scheme_in_a_password_divide_nothing(url: str) -> None:
    assert "sh" not in redacted(url)
    with pytest.raises(BadUrl) as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


def test_a_list_of_urls_is_divided_wherever_one_begins() -> None:
    for urls in (
        ["redis://a:6379/0", "redis://:pw@b/1", "redis+cluster://a:1,b:2"],
        ["postgresql:///one?host=/run/pg", "postgresql://:5433/two", "postgresql://u:p@[::1]:5432,b/three"],
        ["sqlite:///a,b.db", "sqlite:////tmp/c.db"],
        ["https://token@one.example", "http://two.example:8080/prefix"],
    ):
        assert split_urls(",".join(urls)) == urls


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [number for number, _, _ in load_migrations(PACKAGE)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_the_query_for_a_claim_walks_the_index_and_sorts_nothing() -> None:
    from holdfast.stores.sqlite.claims import _claim_statement

    connection, _ = connect("")
    for types in (1, 3, 900):
        bindings = {f"type{n}": f"t{n}" for n in range(types)}
        bindings |= dict.fromkeys(("queue", "limit", "epoch", "claim_id", "worker_id", "now", "lease_ms"), "1")
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + _claim_statement(types), bindings)]
        assert not [line for line in plan if "SCAN tasks" in line]
        if types < 400:
            assert not [line for line in plan if "TEMP B-TREE" in line], plan


@pytest.mark.parametrize(
    "name",
    ["before_enqueue", "promote", "deadlines_passed", "due_documents", "rank_again", "oldest_by_step"],
)
def test_what_is_asked_for_all_the_time_is_found_by_an_index(name: str) -> None:
    connection, _ = connect("")
    bindings = dict.fromkeys(("now", "limit", "before", "queue", "step_ms", "kind"), 1)
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + SQL[name], bindings)]
    assert not [line for line in plan if line.startswith("SCAN") and line not in ("SCAN CONSTANT ROW", "SCAN queues")]
    assert not [line for line in plan if "TEMP B-TREE" in line]


@pytest.mark.parametrize("name", ["map_version", "next_due_document"])
def test_what_every_write_looks_at_is_read_from_an_index_alone(name: str) -> None:
    connection, _ = connect("")
    plan = [
        row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + SQL[name], ("schedule",) * SQL[name].count("?"))
    ]
    assert len(plan) == 1
    assert "USING COVERING INDEX" in plan[0]


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
        connection, steps = connect(path)
        disconnect(connection)
        return steps

    with ThreadPoolExecutor(8) as threads:
        for attempt in range(30):
            steps = list(threads.map(open_one, [f"{tmp_path}/{attempt}.db"] * 8))
            assert sum(map(len, steps)) == len(load_migrations(PACKAGE))


def test_a_file_of_an_older_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = apsw.Connection(str(path))
    connection.execute(f"CREATE TABLE tasks (seq INTEGER); PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 6")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        asyncio.run(_counts(f"sqlite:///{path}"))
    newest = load_migrations(PACKAGE)[-1][0]
    assert f"{path} was made by an older version of Holdfast (schema 6, this version needs {newest})" in str(
        caught.value
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("error", [apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError])
def test_a_file_that_was_open_before_may_be_there_again(tmp_path: Path, error: type[apsw.Error]) -> None:
    """A file system that is read-only for a while, or away, is an outage for those who run."""
    path = str(tmp_path / "tasks.db")
    assert isinstance(translated(error("no"), path, opening=True), BadUrl)
    later = translated(error("no"), path)
    assert isinstance(later, StoreUnavailable)
    assert str(later).startswith(f"cannot open {path}: ")
