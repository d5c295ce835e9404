"""Opening a database file: whose it is, settings, schema."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import BadUrl, StoreTooNew
from holdfast.stores.sqlite.failures import translated
from holdfast.stores.sqltext import load_migrations

PACKAGE = "holdfast.stores.sqlite"
#: "HFST", so that `file holdfast.db` and we can tell whose database this is.
APPLICATION_ID = 0x48465354
#: The first SQLite without the WAL-reset corruption bug.
SAFE_SQLITE = 3_051_003
#: How long a writer waits for the other processes on the file before it calls the store unavailable.
BUSY_LIMIT_SECONDS = 10.0
_SETTINGS: Final = """
PRAGMA synchronous = FULL;
PRAGMA journal_size_limit = 67108864;
PRAGMA cache_size = -65536;
PRAGMA temp_store = MEMORY;
"""


def connect(path: str) -> apsw.Connection:
    """A connection to the file (or to memory, if the path is empty), settings made, waiting its turn politely."""
    try:
        connection = apsw.Connection(path or ":memory:", statementcachesize=300)
        connection.set_busy_handler(_BusyHandler())
        with _transaction(connection, "BEGIN"):
            _version(connection, path)  # Before anything is set: a file of another program is left as it is.
        _write_ahead(connection)
        connection.execute(_SETTINGS)
    except apsw.Error as error:
        raise translated(error, path) from error
    return connection


def pending(path: str) -> list[str]:
    """The steps that `migrate` would take on this file; nothing is changed, nor made."""
    migrations = load_migrations(PACKAGE)
    if not Path(path).exists():
        return [name for _, name, _ in migrations]
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_handler(_BusyHandler())
        with contextlib.closing(connection), _transaction(connection, "BEGIN"):
            found = _version(connection, path)
    except apsw.Error as error:
        raise translated(error, path) from error
    return [name for name, _ in _missing(found, path, migrations)]


def migrate(connection: apsw.Connection, path: str) -> list[str]:
    """Brings the schema up to this version under the write lock; names the steps taken."""
    migrations = load_migrations(PACKAGE)
    newest = migrations[-1][0]
    try:
        if int(connection.pragma("user_version")) == newest:
            return []
        with _transaction(connection, "BEGIN IMMEDIATE"):
            steps = _missing(_version(connection, path), path, migrations)
            for _, text in steps:
                connection.execute(text)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {newest}")
    except apsw.Error as error:
        raise translated(error, path) from error
    return [name for name, _ in steps]


def _missing(found: int, path: str, migrations: list[tuple[int, str, str]]) -> list[tuple[str, str]]:
    newest = migrations[-1][0]
    if found > newest:
        raise StoreTooNew(
            f"{path} was made by a newer version of Holdfast (schema {found}, this version knows {newest}); "
            "upgrade with: pip install --upgrade holdfast"
        )
    return [(name, text) for number, name, text in migrations if number > found]


def _version(connection: apsw.Connection, path: str) -> int:
    """The version of the schema, 0 for a new file; inside a transaction, since others may be at it."""
    version = int(connection.pragma("user_version"))
    foreign = int(connection.pragma("application_id")) != APPLICATION_ID
    if foreign and (version or connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()):
        raise BadUrl(f"{path} is a database of another program; choose a new file, such as sqlite:///holdfast.db")
    return version


def _write_ahead(connection: apsw.Connection) -> None:
    """Switches to the write-ahead log; SQLite does not ask the busy handler about this one."""
    deadline = time.monotonic() + BUSY_LIMIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        else:
            return


@contextlib.contextmanager
def _transaction(connection: apsw.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class _BusyHandler:
    """Asks again after a millisecond or so: SQLite's own handler sleeps up to 100 ms, unfairly."""

    def __init__(self) -> None:
        self._deadline = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._deadline = now + BUSY_LIMIT_SECONDS
        if now > self._deadline:
            return False
        time.sleep(0.0003 if tries < 10 else 0.0015)
        return True
