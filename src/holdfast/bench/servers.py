"""Servers of the bench's own: fresh, on a free loopback port, gone afterwards."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import BadOption, StoreUnavailable

_START_S = 10.0


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """The URL of a Redis with its append-only file on, synced every second."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise BadOption("--store redis needs redis-server; on Debian: apt install redis-server, or name one with --url")
    port = _free_port()
    words = f"--port {port} --bind 127.0.0.1 --save --appendonly yes --appendfsync everysec --dir".split()
    with (directory / "redis.txt").open("wb") as log:
        process = subprocess.Popen([binary, *words, str(directory)], stdout=log, stderr=log)  # noqa: S603
    try:
        _until_open(port, process)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(_START_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise StoreUnavailable(f"redis-server did not start on port {port}")
