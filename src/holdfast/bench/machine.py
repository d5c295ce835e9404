"""What the figures depend on: the machine, its file system and the versions in use."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from holdfast.version import __version__

_PACKAGES = ("apsw", "h11", "msgspec", "starlette", "uvicorn", "uvloop")


def machine(directory: Path) -> dict[str, str | int]:
    """The machine that was measured; nothing that names it."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "file_system": _file_system(directory),
    }


def versions() -> dict[str, str]:
    """The versions of everything on the hot path."""
    found = {"holdfast": __version__, "python": f"{platform.python_implementation()} {sys.version.split()[0]}"}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _processor() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _file_system(directory: Path) -> str:
    """The type of the file system below `directory`: on tmpfs an fsync costs nothing."""
    best = ("", "unknown")
    for line in _lines(Path("/proc/mounts")):
        _, mount, kind, *_ = line.split()
        if directory.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
