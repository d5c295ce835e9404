"""Servers of the bench's own: fresh, on a free loopback port, gone afterwards."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.errors import BadOption, StoreUnavailable

_START_S = 10.0
_MASTERS = 3
_SLOTS = 16_384
#: What Redis and PostgreSQL say when clients may come; an open port is too early, they may still be recovering.
_READY = re.compile(rb"ready to accept connections", re.IGNORECASE)
_POSTGRES_PROGRAMS = Path("/usr/lib/postgresql")


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """The URL of a Redis with its append-only file on, synced every second."""
    with _redis(_redis_program(), directory) as port:
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def redis_cluster(directory: Path) -> Iterator[str]:
    """The URL of three masters with a partition each, their append-only files synced every second."""
    binary = _redis_program()
    with ExitStack() as stack:
        ports = []
        for number in range(_MASTERS):
            place = directory / f"master-{number}"
            place.mkdir()
            ports.append(stack.enter_context(_redis(binary, place, "--cluster-enabled yes")))
        _join(ports)
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield f"redis+cluster://{addresses}?partitions={_MASTERS}"


def _redis_program() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        raise BadOption("--store redis needs redis-server; on Debian: apt install redis-server, or name one with --url")
    return binary


@contextmanager
def _redis(binary: str, directory: Path, more: str = "") -> Iterator[int]:
    """The port of a Redis server."""
    port = free_port()
    # A rewrite of the file, due after some hundred thousand tasks, would take a core from whatever is measured then.
    file = "--appendonly yes --appendfsync everysec --auto-aof-rewrite-percentage 0"
    words = f"--port {port} --bind 127.0.0.1 --save {file} {more} --dir".split()
    with _running("redis-server", [binary, *words, str(directory)], directory / "redis.txt", signal.SIGTERM):
        yield port


def _join(ports: Sequence[int]) -> None:
    """Makes a cluster of masters: slots in equal parts, every node introduced to the first."""
    from redis import Redis

    clients = [Redis(port=port, decode_responses=True) for port in ports]
    bounds = [_SLOTS * number // len(ports) for number in range(len(ports) + 1)]
    for number, client in enumerate(clients):
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)  # type: ignore[no-untyped-call]
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0])  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + _START_S
    while any(client.cluster("INFO")["cluster_state"] != "ok" for client in clients):
        if time.monotonic() > deadline:
            raise StoreUnavailable("the masters did not become a cluster")
        time.sleep(0.05)
    for client in clients:
        client.close()


@contextmanager
def postgres_server(directory: Path) -> Iterator[str]:
    """The URL of a PostgreSQL as `initdb` makes it, with fsync and synchronous_commit on."""
    place, who = directory / "postgres", _owner()
    place.mkdir()
    if who:
        directory.chmod(0o711)  # PostgreSQL refuses root: another user passes through
        shutil.chown(place, who["user"], who["group"])
    names = ["--username", "postgres", "--auth", "trust", "--no-locale", "--encoding", "UTF8"]
    made = subprocess.run(  # noqa: S603
        [_postgres_program("initdb"), "--pgdata", str(place / "data"), *names],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        **who,
    )
    if made.returncode:
        raise StoreUnavailable(f"initdb: {made.stderr.strip()}")
    port = free_port()
    safe = [word for name in ("fsync", "full_page_writes", "synchronous_commit") for word in ("-c", f"{name}=on")]
    words = ["-D", str(place / "data"), "-k", str(place), "-h", "127.0.0.1", "-p", str(port), *safe]
    command = [_postgres_program("postgres"), *words]
    with _running("postgres", command, directory / "postgres.txt", signal.SIGINT, **who):
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server that the bench starts, and what it is, in words."""

    start: Callable[[Path], AbstractContextManager[str]]
    described: str
    #: The store whose drain is measured in the same run, to compare with.
    beside: str | None = None


OWN_SERVERS: Final[Mapping[str, OwnServer]] = {
    "redis": OwnServer(redis_server, "redis-server with appendfsync everysec, its file not rewritten meanwhile"),
    "redis-cluster": OwnServer(
        redis_cluster, "Redis Cluster of three masters with appendfsync everysec, one partition each", beside="redis"
    ),
    "postgres": OwnServer(postgres_server, "PostgreSQL with fsync and synchronous_commit on"),
}


@contextmanager
def _running(name: str, command: Sequence[str], log: Path, end: signal.Signals, **who: Any) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=log.parent, **who)  # noqa: S603
    try:
        _until_ready(name, log, process)
        yield
    finally:
        process.send_signal(end)
        process.wait(_START_S)


def _owner() -> dict[str, Any]:
    """Whom to run PostgreSQL as if we are root, as arguments of `subprocess`."""
    return {"user": "postgres", "group": "postgres", "extra_groups": ()} if os.geteuid() == 0 else {}


def _postgres_program(name: str) -> str:
    """From the path, or where Debian keeps the programs of each version."""
    kept = sorted(_POSTGRES_PROGRAMS.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = shutil.which(name) or (str(kept[-1]) if kept else None)
    if found is None:
        raise BadOption(f"--store postgres needs {name}; on Debian: apt install postgresql, or name one with --url")
    return found


def free_port() -> int:
    """Low enough for a member of a Redis Cluster, which listens 10,000 ports higher too."""
    while True:
        port = random.randrange(20_000, 50_000)  # noqa: S311  # No secret.
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _until_ready(name: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        if _READY.search(log.read_bytes()):
            return
        time.sleep(0.02)
    lines = log.read_text(errors="replace").splitlines() or ["it said nothing"]
    raise StoreUnavailable(f"{name} did not start: {lines[-1]}")
