"""SQLite's errors in our words: what happened, and what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import BadUrl, HoldfastError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable

#: How long a writer waits for the other processes on the file before it calls the store unavailable.
BUSY_LIMIT_SECONDS: Final = 10.0
#: After this long it logs a warning: another tool, or a transaction left open in a shell, has the file.
BUSY_WARN_SECONDS: Final = 5.0


def translated(error: apsw.Error, path: str, *, opening: bool = False) -> HoldfastError:
    """An engine's error in our words: what happened, and what to do.

    A file that cannot be opened makes a wrong URL; one that was open before may be there again later.
    """
    name = path or "memory"
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        text = f"{name}: another process held the write lock for more than {BUSY_LIMIT_SECONDS:g} s; try again"
        return StoreUnavailable(text, tried_ms=round(BUSY_LIMIT_SECONDS * 1000))
    for classes, ours, text in _TRANSLATIONS:
        if isinstance(error, classes):
            return ours(text.format(name=name, error=error))
    if isinstance(error, _CANNOT_WRITE):
        kind = BadUrl if opening else StoreUnavailable
        return kind(f"cannot open {name}: {_obstacle(path)}")
    return StoreError(f"{name}: {type(error).__name__}: {error}")


_TRANSLATIONS: Final[tuple[tuple[tuple[type[apsw.Error], ...], type[HoldfastError], str], ...]] = (
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
