"""What a worker is told when it starts."""

from __future__ import annotations

import os

import msgspec

from holdfast.core.fairness import parse_queues
from holdfast.errors import BadOption
from holdfast.observe.logs import LogFormat
from holdfast.stores.contract import MAX_BATCH

MAX_PROCESSES = 512
#: One exchange settles at most what runs, and a store takes so many changes in one call.
MAX_CONCURRENCY = MAX_BATCH
MAX_TASKS = 1_000_000_000
SHORTEST_LEASE_MS = 500
SHORTEST_AGE_MS = 1_000
#: Less than any child uses when it has imported an app.
LEAST_MEMORY = 32 * 2**20
MAX_PORT = 65_535


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `holdfast worker`; they reach the children over a socket, never on a command line."""

    app: str
    queues: str = "default"
    processes: int = 1
    concurrency: int = 50
    #: None: what the app says.
    lease_ms: int | None = None
    grace_ms: int = 10_000
    #: Processes for the types that run one task at a time; 0: as many as there are cores.
    alone: int = 0
    #: When a child is replaced; None for never. Memory in bytes, of each child.
    max_memory: int | None = None
    max_tasks: int | None = None
    max_age_ms: int | None = None
    #: Ends by itself when there is nothing left to do.
    burst: bool = False
    #: Replaces the children whenever a source file changes.
    reload: bool = False
    #: Where health is told over HTTP, as host:port; None for nowhere.
    health: str | None = None
    #: Not ready after this long without an answered reserve.
    ready_within_ms: int = 60_000
    #: None: what the app says.
    url: str | None = None
    log_level: str = "info"
    log_format: LogFormat = "text"

    @property
    def cpu_processes(self) -> int:
        """How many processes there are for the types that run one task at a time."""
        return self.alone or os.cpu_count() or 1

    def check(self) -> WorkerOptions:
        """The options themselves, or a `BadOption` that names the wrong one."""
        parse_queues(self.queues)
        _in_range("processes", self.processes, 1, MAX_PROCESSES)
        _in_range("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        _in_range("cpu-processes", self.alone, 0, MAX_PROCESSES)
        if self.max_tasks is not None:
            _in_range("max-tasks", self.max_tasks, 1, MAX_TASKS)
        if self.lease_ms is not None and self.lease_ms < SHORTEST_LEASE_MS:
            raise BadOption(f"lease: {self.lease_ms} ms is too short; heartbeats need at least {SHORTEST_LEASE_MS} ms")
        if self.max_age_ms is not None and self.max_age_ms < SHORTEST_AGE_MS:
            raise BadOption(f"max-age: {self.max_age_ms} ms is too short; a child needs at least {SHORTEST_AGE_MS} ms")
        if self.max_memory is not None and self.max_memory < LEAST_MEMORY:
            raise BadOption(f"max-memory: {self.max_memory} bytes is less than a child needs to start; write 400MB")
        if self.burst and self.reload:
            raise BadOption("burst and reload: one ends the worker, the other one keeps it; choose one of them")
        if self.health is not None:
            health_address(self.health)
        return self


def health_address(text: str) -> tuple[str, int]:
    """`host:port`, `[::1]:port`, or a port alone, which is one of this machine's own address only."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= MAX_PORT) or (":" in host and host[0] != "["):
        raise BadOption(f"health: {text!r} is not an address; write 127.0.0.1:8080, [::1]:8080 or 8080")
    return host.strip("[]") or "127.0.0.1", int(port)


def _in_range(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadOption(f"{option}: {value} must be from {low} to {high}")
