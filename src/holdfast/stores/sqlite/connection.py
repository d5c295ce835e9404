"""Opening a database file: settings, schema, and errors in our words."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import BadUrl, HoldfastError, StoreCorrupt, StoreError, StoreFull, StoreTooNew, StoreUnavailable
from holdfast.stores.sqltext import load_migrations

PACKAGE = "holdfast.stores.sqlite"
#: "HFST", so that `file holdfast.db` and we can tell whose database this is.
APPLICATION_ID = 0x48465354
#: The first SQLite without the WAL-reset corruption bug.
SAFE_SQLITE = 3_051_003
#: How long a writer waits for the other processes on the file before it calls the store unavailable.
BUSY_LIMIT_SECONDS = 10.0
_SETTINGS = """
PRAGMA journal_mode = WAL;
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
        connection.execute(_SETTINGS)
    except apsw.Error as error:
        raise translated(error, path) from error
    return connection


def migrate(connection: apsw.Connection, path: str) -> list[str]:
    """Brings the schema up to this version under the write lock; names the steps taken."""
    migrations = load_migrations(PACKAGE)
    newest = migrations[-1][0]
    try:
        if _version(connection, path) == newest:
            return []
        connection.execute("BEGIN IMMEDIATE")
        try:
            steps = _apply(connection, path, migrations)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {newest}; COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except apsw.Error as error:
        raise translated(error, path) from error
    return steps


def _apply(connection: apsw.Connection, path: str, migrations: list[tuple[int, str, str]]) -> list[str]:
    found = _version(connection, path)
    if found > migrations[-1][0]:
        raise StoreTooNew(
            f"{path} was made by a newer version of Holdfast (schema {found}, this version knows "
            f"{migrations[-1][0]}); upgrade with: pip install --upgrade holdfast"
        )
    steps = [(name, text) for number, name, text in migrations if number > found]
    for _, text in steps:
        connection.execute(text)
    return [name for name, _ in steps]


def _version(connection: apsw.Connection, path: str) -> int:
    version = int(connection.pragma("user_version"))
    foreign = int(connection.pragma("application_id")) != APPLICATION_ID
    if foreign and (version or connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()):
        raise BadUrl(f"{path} is a database of another program; choose a new file, such as sqlite:///holdfast.db")
    return version


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


def translated(error: apsw.Error, path: str) -> HoldfastError:
    """An engine's error in our words: what happened, and what to do."""
    name = path or "memory"
    for classes, ours, text in _TRANSLATIONS:
        if isinstance(error, classes):
            return ours(text.format(name=name, error=error))
    if isinstance(error, _CANNOT_WRITE):
        return BadUrl(f"cannot open {name}: {_obstacle(path)}")
    return StoreError(f"{name}: {type(error).__name__}: {error}")


_TRANSLATIONS: Final[tuple[tuple[tuple[type[apsw.Error], ...], type[HoldfastError], str], ...]] = (
    (
        (apsw.BusyError, apsw.LockedError),
        StoreUnavailable,
        "{name}: another process held the write lock for too long; will be tried again",
    ),
    (
        (apsw.FullError,),
        StoreFull,
        "{name}: the disk is full; free some space, what is running can still be settled",
    ),
    (
        (apsw.NotADBError,),
        BadUrl,
        "{name} is not a SQLite database; choose another file, such as sqlite:///holdfast.db",
    ),
    (
        (apsw.CorruptError,),
        StoreCorrupt,
        "{name} is damaged: {error}; stop all workers and restore it from a backup",
    ),
    (
        (apsw.IOError, apsw.NoMemError, apsw.InterruptError, apsw.ProtocolError),
        StoreUnavailable,
        "{name}: {error}; will be tried again",
    ),
)
_CANNOT_WRITE: Final = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError)


def _obstacle(path: str) -> str:
    folder = Path(path).parent
    if not folder.exists():
        return f"the folder {folder} does not exist; make it first"
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if Path(path).is_dir():
        return "it is a folder; name a file in it"
    if Path(path).exists() and not os.access(path, os.W_OK):
        return "no permission to write it"
    if not os.access(folder, os.W_OK):
        return f"no permission to write into the folder {folder}"
    return "the file system refuses to write it"
