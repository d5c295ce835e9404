"""What the store says about itself when `holdfast doctor` asks."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw

from holdfast.stores.contract import Finding
from holdfast.stores.sqlite.connection import SAFE_SQLITE
from holdfast.stores.sqlite.transaction import Transaction

_LARGE_WAL = 256 * 1024 * 1024
_LITTLE_SPACE = 256 * 1024 * 1024
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "afs", "ceph"})


def probe(transaction: Transaction, path: str) -> list[Finding]:
    """One line for each thing that can be right or wrong."""
    findings = [_version(), _schema(transaction), _durability(transaction, path)]
    if path:
        findings += [_file_system(path), _write_ahead_log(path), _space(path)]
    return findings


def _version() -> Finding:
    version = apsw.sqlite_lib_version()
    if apsw.SQLITE_VERSION_NUMBER < SAFE_SQLITE:
        text = f"SQLite {version} can corrupt a database that several processes use; run: pip install --upgrade apsw"
        return Finding(level="problem", check="sqlite", text=text)
    return Finding(level="ok", check="sqlite", text=f"SQLite {version}, without the WAL-reset bug")


def _schema(transaction: Transaction) -> Finding:
    version = transaction.connection.pragma("user_version")
    return Finding(level="ok", check="schema", text=f"version {version}, up to date")


def _durability(transaction: Transaction, path: str) -> Finding:
    if not path:
        return Finding(level="note", check="durability", text="in memory: everything ends with this process")
    mode, level = transaction.connection.pragma("journal_mode"), transaction.connection.pragma("synchronous")
    if (mode, level) != ("wal", 2):
        text = f"journal_mode={mode}, synchronous={level}: acknowledged tasks may be lost; use a local file system"
        return Finding(level="problem", check="durability", text=text)
    return Finding(level="ok", check="durability", text="WAL, synchronous=FULL: survives kill -9 and power loss")


def _file_system(path: str) -> Finding:
    kind = _mount_kind(Path(path).resolve())
    if kind in _NETWORK_FILE_SYSTEMS:
        text = f"{kind}: SQLite's locks do not work over a network; move the file to a local disk"
        return Finding(level="problem", check="file system", text=text)
    return Finding(level="ok", check="file system", text=f"{kind or 'unknown'}, local")


def _mount_kind(path: Path) -> str:
    try:
        mounts = Path("/proc/mounts").read_text("utf-8").splitlines()
    except OSError:
        return ""
    fields = [line.split() for line in mounts]
    fitting = [field for field in fields if path.is_relative_to(field[1].replace("\\040", " "))]
    return max(fitting, key=lambda field: len(field[1]), default=["", "", ""])[2]


def _write_ahead_log(path: str) -> Finding:
    log = Path(path + "-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _LARGE_WAL:
        text = (
            f"{size // 2**20} MiB: some reader never ends its transaction; look for long-running programs on the file"
        )
        return Finding(level="warning", check="write-ahead log", text=text)
    return Finding(level="ok", check="write-ahead log", text=f"{size / 2**20:.1f} MiB, small enough")


def _space(path: str) -> Finding:
    free = shutil.disk_usage(Path(path).resolve().parent).free
    kept = Path(path + "-ballast").exists()
    text = f"{free // 2**20:,} MiB free, {'room' if kept else 'NO room'} kept back for settlements"
    return Finding(level="ok" if kept and free >= _LITTLE_SPACE else "warning", check="disk space", text=text)
