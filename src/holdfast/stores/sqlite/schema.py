"""The schema of a database file: whose it is, its version, and the steps to the newest one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

import apsw

from holdfast.errors import BadUrl, StoreError, StoreTooNew
from holdfast.stores.sqltext import load_migrations

PACKAGE: Final = "holdfast.stores.sqlite"
#: "HFST", so that `file holdfast.db` and we can tell whose database this is.
APPLICATION_ID: Final = 0x48465354


@cache
def migrations() -> Sequence[tuple[int, str, str]]:
    """Number, name and text of each step."""
    return load_migrations(PACKAGE)


def missing(connection: apsw.Connection, path: str) -> list[tuple[str, str]]:
    """Name and text of the steps that this file lacks; refuses one that is not ours, too new or too old."""
    found = _version(connection, path)
    oldest, newest = migrations()[0][0], migrations()[-1][0]
    if 0 < found < oldest:
        raise StoreError(
            f"{path} was made by an older version of Holdfast (schema {found}, this version needs {newest}); "
            "use a new file, or open this one with the version that made it"
        )
    if found > newest:
        raise StoreTooNew(
            f"{path} was made by a newer version of Holdfast (schema {found}, this version knows {newest}); "
            "upgrade Holdfast to open it"
        )
    return [(name, text) for number, name, text in migrations() if number > found]


def migrate(connection: apsw.Connection, path: str) -> list[str]:
    """Brings the schema up to this version under the write lock; names the steps taken."""
    newest = migrations()[-1][0]
    if int(connection.pragma("user_version")) == newest:
        return []
    with transaction(connection, "BEGIN IMMEDIATE"):
        steps = missing(connection, path)
        for _, text in steps:
            connection.execute(text)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {newest}")
    return [name for name, _ in steps]


def _version(connection: apsw.Connection, path: str) -> int:
    """The version of the schema, 0 for a new file; inside a transaction, since others may be at it."""
    version = int(connection.pragma("user_version"))
    foreign = int(connection.pragma("application_id")) != APPLICATION_ID
    if foreign and (version or connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()):
        raise BadUrl(f"{path} is a database of another program; choose a new file, such as sqlite:///holdfast.db")
    return version


@contextlib.contextmanager
def transaction(connection: apsw.Connection, begin: str) -> Iterator[None]:
    """A transaction that is rolled back on an error."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
