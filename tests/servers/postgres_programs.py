"""Where the programs of PostgreSQL are, whom they run as, and data directories that are ready at once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.servers.processes import end_at_exit, ended, own_directory, run_as, server_user

Setting = str | int | bool
Settings = Mapping[str, Setting]

SUPERUSER: Final = "postgres"
PASSWORD: Final = "p@ss:word/1"

#: Nothing waits for the disk; what was committed is there again after a kill, but not after a power cut.
FAST: Final[Settings] = {"fsync": False, "full_page_writes": False}
#: Everything that was committed is on disk.
DURABLE: Final[Settings] = {"fsync": True, "full_page_writes": True, "synchronous_commit": True}

#: What all of ours have: small, with room for many clients, and quick to see that a standby is gone.
COMMON: Final[Settings] = {
    "max_connections": 300,
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so nothing stays in memory after a kill
    "wal_level": "replica",
    "max_wal_senders": 10,
    "wal_sender_timeout": "5s",
    "wal_receiver_timeout": "5s",
    "wal_retrieve_retry_interval": "200ms",
    "hot_standby": True,
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_INSTALLED: Final = Path("/usr/lib/postgresql")


@cache
def program(name: str) -> Path:
    """A program: of the version of PostgreSQL that we run, or from the path."""
    ours = programs_directory() / name
    found = ours if ours.exists() else shutil.which(name) or shutil.which(name, path="/usr/sbin")
    assert found, f"{name} is not installed; run scripts/ensure-services"
    return Path(found)


@cache
def programs_directory() -> Path:
    """Where the server is that is on the path, or else the newest one that Debian has."""
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    versions = sorted(_INSTALLED.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    assert versions, "PostgreSQL is not installed; run scripts/ensure-services"
    return versions[-1].parent


def new_data(directory: Path) -> None:
    """Fills a directory that is not there yet with the data of a new server: a copy of one that is made once."""
    run_as(server_user(), "cp", "--archive", "--reflink=auto", _template().data, directory, cwd=directory.parent)


class _Template:
    """The data directory that all others are copied from."""

    def __init__(self) -> None:
        self.directory = own_directory("holdfast-postgres-template-", server_user())
        self.data = self.directory / "data"
        end_at_exit(self)
        self._make()

    def _make(self) -> None:
        password = self.directory / "password"
        password.write_text(PASSWORD + "\n")
        names: list[str | Path] = ["--username", SUPERUSER, "--pwfile", password, "--auth", "trust"]
        options = ["--no-sync", "--no-locale", "--encoding", "UTF8", "--no-instructions"]
        run_as(server_user(), program("initdb"), "--pgdata", self.data, *names, *options, cwd=self.directory)

    def end(self) -> None:
        """Deletes it."""
        shutil.rmtree(self.directory, ignore_errors=True)
        ended(self)


@cache
def _template() -> _Template:
    return _Template()


def settings_text(settings: Settings) -> str:
    """The lines of a configuration file."""
    return "".join(f"{name} = '{value_text(value)}'\n" for name, value in settings.items())


def value_text(value: Setting) -> str:
    """A value as it stands between quotes."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).replace("'", "''")
