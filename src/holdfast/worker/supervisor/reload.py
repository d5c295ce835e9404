"""Notices changes of source files, for development."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger("holdfast.worker")

LOOK_EVERY_S = 0.5
#: Several files that are written one after the other are one change.
SETTLE_S = 0.2
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})

#: By path: when it was changed, and its size.
Snapshot = dict[str, tuple[int, int]]


async def watch(changed: Callable[[str], None], root: Path | None = None) -> None:
    """Goes on until cancelled, and calls `changed` when a file was changed, made or deleted."""
    root = root or Path.cwd()
    before = await asyncio.to_thread(snapshot, root)
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = await asyncio.to_thread(snapshot, root)
        if now == before:
            continue
        now = await _settled(root, now)
        if names := sorted({path for path, _ in before.items() ^ now.items()}):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            _log.info("%s%s changed; replacing the children", os.path.relpath(names[0], root), more)
            changed("the source has changed")
        before = now


async def _settled(root: Path, now: Snapshot) -> Snapshot:
    while True:
        await asyncio.sleep(SETTLE_S)
        before, now = now, await asyncio.to_thread(snapshot, root)
        if now == before:
            return now


def snapshot(root: Path) -> Snapshot:
    """The Python files under a folder, without hidden folders, virtual environments and installed packages."""
    found: Snapshot = {}
    folders = [str(root)]
    while folders:
        entries = _entries(folders.pop())
        for entry in entries:
            if entry.name.endswith(".py"):
                with contextlib.suppress(OSError):  # deleted meanwhile
                    status = entry.stat()
                    found[entry.path] = (status.st_mtime_ns, status.st_size)
            elif _is_looked_into(entry):
                folders.append(entry.path)
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return []
    return [] if any(entry.name == "pyvenv.cfg" for entry in entries) else entries


def _is_looked_into(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.name not in _SKIPPED and not entry.name.startswith(".")
