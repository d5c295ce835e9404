"""The options of a worker, and its concurrency, which can be changed while it runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.fairness import parse_queues
from holdfast.errors import BadOption
from holdfast.observe.exposition import available
from holdfast.observe.logs import LogFormat
from holdfast.observe.task_log import LogTasks
from holdfast.stores.contract import MAX_BATCH, WorkerOrders

_log = logging.getLogger("holdfast.worker")

MAX_PROCESSES = 512
#: One exchange settles at most what runs, and this is the most changes that a store takes in one call.
MAX_CONCURRENCY = MAX_BATCH
MAX_TASKS = 1_000_000_000
SHORTEST_LEASE_MS = 500
SHORTEST_AGE_MS = 1_000
#: Less than any child uses when it has imported an app.
LEAST_MEMORY = 32 * 2**20
MAX_PORT = 65_535
#: Where the memory of a process can be read.
_MEMORY = Path("/proc/self/statm")
WORKERS_RUN_HERE = hasattr(os, "killpg")


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `holdfast worker`; they reach the children over a socket, never on a command line."""

    app: str
    #: None: all queues that the app declares.
    queues: str | None = None
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
    #: What is logged of tasks.
    log_tasks: LogTasks = "all"

    @property
    def cpu_processes(self) -> int:
        """How many processes there are for the types that run one task at a time."""
        return self.alone or os.cpu_count() or 1

    @property
    def measured(self) -> bool:
        """Whether there is somewhere to read the metrics of this worker, and the package that writes them."""
        return self.health is not None and available()

    def check(self) -> WorkerOptions:
        """The options themselves, or a `BadOption` that names the wrong one."""
        if not WORKERS_RUN_HERE:
            raise BadOption("workers need process groups, which this system does not have: on Windows, run them in WSL")
        if self.queues is not None:
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
        if self.max_memory is not None and not _MEMORY.exists():
            raise BadOption("max-memory: this system has no /proc to read it from; use --max-tasks or --max-age")
        if self.burst and self.reload:
            raise BadOption("burst and reload: one ends the worker, the other one keeps it; choose one of them")
        if self.health is not None:
            health_address(self.health)
        return self


class Concurrency:
    """How many tasks each child runs at once: as started, by signal, or by an operator; the latest change wins."""

    def __init__(self, started_with: int, changed: Callable[[int], None]) -> None:
        self._started_with = started_with
        self._changed = changed
        #: An order comes with every heartbeat, and counts when it is new.
        self._last_order: int | None = None
        self.current = started_with

    def step(self, by: int) -> None:
        """One more or one less, within what is possible."""
        self._set(self.current + by, "by signal")

    def apply(self, orders: WorkerOrders | None) -> None:
        """Applies what the store has for this worker."""
        ordered = orders.concurrency if orders else None
        if ordered != self._last_order:
            self._last_order = ordered
            self._set(self._started_with if ordered is None else ordered, "on request")

    def _set(self, concurrency: int, why: str) -> None:
        bounded = min(max(concurrency, 1), MAX_CONCURRENCY)
        if bounded != self.current:
            _log.info("concurrency: %d instead of %d, %s", bounded, self.current, why)
            self.current = bounded
            self._changed(bounded)


def health_address(text: str) -> tuple[str, int]:
    """`host:port`, `[::1]:port`, or a port alone, which is one of this machine's own address only."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= MAX_PORT) or (":" in host and host[0] != "["):
        raise BadOption(f"health: {text!r} is not an address; write 127.0.0.1:8080, [::1]:8080 or 8080")
    return host.strip("[]") or "127.0.0.1", int(port)


def _in_range(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadOption(f"{option}: {value} must be from {low} to {high}")
