"""Connections to a database file: settings, who has it open, and whether it is still there."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import StoreError
from holdfast.runtime.forks import process
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.errors import BUSY_LIMIT_SECONDS, BUSY_WARN_SECONDS, translated

_log = logging.getLogger("holdfast.stores")

#: The first SQLite without the WAL-reset corruption bug.
SAFE_SQLITE = 3_051_003
_SETTINGS: Final = """
PRAGMA synchronous = FULL;
PRAGMA journal_size_limit = 67108864;
PRAGMA cache_size = -65536;
PRAGMA temp_store = MEMORY;
"""


#: The open connections of this process, and of those that it was forked from: whose they are, and to which file.
_open: dict[int, tuple[tuple[int, int], str]] = {}


def connect(path: str, *, again: bool = False) -> tuple[apsw.Connection, list[str]]:
    """A connection to the file (or to memory, if the path is empty), its schema up to date, and the steps this took.

    `again`: this process had the file open before, so a file that cannot be opened is an outage, not a wrong URL.
    """
    _check_not_inherited(path)
    try:
        connection = apsw.Connection(path or ":memory:", statementcachesize=300)
    except apsw.Error as error:
        raise translated(error, path, opening=not again) from error
    _open[id(connection)] = process(), path
    try:
        connection.set_busy_handler(_BusyHandler(path))
        with schema.transaction(connection, "BEGIN"):
            # Before anything is set: a file that is not ours, or not of our time, is left as it is.
            schema.missing(connection, path)
        _write_ahead(connection)
        connection.execute(_SETTINGS)
        return connection, schema.migrate(connection, path)
    except BaseException as error:
        disconnect(connection)
        if isinstance(error, apsw.Error):
            raise translated(error, path, opening=not again) from error
        raise


#: How often the log is looked for: it goes alone only by mistake, the database by the mistakes of others.
_LOG_LOOK_SECONDS: Final = 0.05


class File:
    """Which files a connection has open: the database and its log."""

    def __init__(self, path: str) -> None:
        self._path, self._log_path = path, path + "-wal"
        self._known: tuple[int, int] | None = None
        self._known_log: tuple[int, int] | None = None
        self._log_seen = 0.0

    def opened(self) -> None:
        """The connection was made just now."""
        if self._path:
            self._known, self._known_log = _identity(self._path), _identity(self._log_path)
            self._log_seen = time.monotonic()

    def closed(self) -> None:
        """There is no connection any more."""
        self._known = self._known_log = None

    def is_gone(self) -> bool:
        """Whether another file, or none, is at the place of one that the connection has open.

        The database is looked at each time, its log now and then: each look costs an enqueue some percent.
        """
        if self._known is None:
            return False
        return self._known != _identity(self._path) or self._log_is_gone()

    def _log_is_gone(self) -> bool:
        now = time.monotonic()
        if now - self._log_seen < _LOG_LOOK_SECONDS:
            return False
        self._log_seen = now
        return self._known_log != _identity(self._log_path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  (with every group of calls)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def disconnect(connection: apsw.Connection) -> None:
    """Closes a connection of this process."""
    connection.close()
    _open.pop(id(connection), None)


def _check_not_inherited(path: str) -> None:
    """Refuses a file that this process inherited open: SQLite would take the parent's locks for its own."""
    this = process()
    if any(file == path and owner != this for owner, file in list(_open.values()) if file):
        raise StoreError(
            f"{path} was in use when this process was forked, so it cannot be used in it: "
            "fork before the app is first used, or close the app before the fork"
        )


def pending(path: str) -> list[str]:
    """The steps that `migrate` would take on this file; nothing is changed, nor made."""
    if not Path(path).exists():
        return [name for _, name, _ in schema.migrations()]
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_handler(_BusyHandler(path))
        with contextlib.closing(connection), schema.transaction(connection, "BEGIN"):
            return [name for name, _ in schema.missing(connection, path)]
    except apsw.Error as error:
        raise translated(error, path, opening=True) from error


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


class _BusyHandler:
    """Asks again after a millisecond or so: SQLite's own handler sleeps up to 100 ms, unfairly."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._deadline = 0.0
        self._warn_at = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._deadline = now + BUSY_LIMIT_SECONDS
            self._warn_at = now + BUSY_WARN_SECONDS
        if now > self._deadline:
            return False
        if now > self._warn_at:
            self._warn_at = math.inf
            _log.warning(
                "%s: another program has held its write lock for %g s; still waiting", self._path, BUSY_WARN_SECONDS
            )
        time.sleep(0.0003 if tries < 10 else 0.0015)
        return True
