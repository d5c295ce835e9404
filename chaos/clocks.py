"""A clock of its own for the processes of a run: it can be stepped while they run.

Processes of Python read their offset from a file that is mapped into memory (`follow`), so that a step reaches all of
them at one moment. Servers written in C are started with libfaketime, which reads the same offset as text.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: Names the file with the offset in the environment of a process.
OFFSET_VARIABLE: Final = "CHAOS_CLOCK"
_OFFSET: Final = struct.Struct("=q")
_LIBRARIES: Final = "**/libfaketimeMT.so.1"
_LIBRARY_ROOTS: Final = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))
_ROOT: Final = Path(__file__).resolve().parent.parent


class MachineClock:
    """The clock of one machine, as the processes that follow it see it."""

    def __init__(self, directory: Path) -> None:
        self._offset = directory / "clock-offset"
        self._text = directory / "clock-offset.txt"
        self._offset.write_bytes(_OFFSET.pack(0))
        self._text.write_text("+0\n")
        # A server that runs as another user reads it too.
        directory.chmod(0o755)

    def step(self, seconds: int) -> None:
        """From now on this many seconds ahead of the real time, or behind it."""
        with self._offset.open("r+b") as offset:
            offset.write(_OFFSET.pack(seconds * 1_000_000_000))
        self._text.write_text(f"{seconds:+d}\n")

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process of Python needs to follow this clock; `chaos/machine` has its `sitecustomize`."""
        return {OFFSET_VARIABLE: str(self._offset), "PYTHONPATH": f"{_ROOT / 'chaos' / 'machine'}:{_ROOT}"}

    @property
    def prefix(self) -> Sequence[str]:
        """The words before the command of a server in C that make it follow this clock."""
        return [
            "env",
            f"LD_PRELOAD={_library()}",
            f"FAKETIME_TIMESTAMP_FILE={self._text}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
        ]

    @contextmanager
    def followed_here(self) -> Iterator[None]:
        """Has this process follow it too, for as long as the block lasts."""
        real = time.time, time.time_ns
        follow(str(self._offset))
        try:
            yield
        finally:
            time.time, time.time_ns = real


def follow(path: str) -> None:
    """From now on `time.time` and `time.time_ns` of this process are ahead by what the file says."""
    with Path(path).open("rb") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)
    real_ns = time.time_ns

    def stepped_ns() -> int:
        return real_ns() + int(_OFFSET.unpack_from(offset)[0])

    time.time_ns = stepped_ns
    time.time = lambda: stepped_ns() / 1_000_000_000


def follow_environment() -> None:
    """The same if the environment names a file."""
    if path := os.environ.get(OFFSET_VARIABLE):
        follow(path)


def _library() -> Path:
    for root in _LIBRARY_ROOTS:
        if found := next(root.glob(_LIBRARIES), None):
            return found
    raise RuntimeError("clocks of servers are stepped with libfaketime; on Debian: apt install libfaketime")
