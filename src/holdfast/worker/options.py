"""What a worker is told when it starts."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.core.fairness import parse_queues
from holdfast.errors import BadOption
from holdfast.stores.contract import MAX_BATCH

LogFormat = Literal["text", "json"]

MAX_PROCESSES = 512
#: One exchange settles at most what runs, and a store takes so many changes in one call.
MAX_CONCURRENCY = MAX_BATCH
SHORTEST_LEASE_MS = 500


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `holdfast worker`; they reach the children over a socket, never on a command line."""

    app: str
    queues: str = "default"
    processes: int = 1
    concurrency: int = 50
    #: None: what the app says.
    lease_ms: int | None = None
    grace_ms: int = 10_000
    #: None: what the app says.
    url: str | None = None
    log_level: str = "info"
    log_format: LogFormat = "text"

    def check(self) -> WorkerOptions:
        """The options themselves, or a `BadOption` that names the wrong one."""
        parse_queues(self.queues)
        _in_range("processes", self.processes, 1, MAX_PROCESSES)
        _in_range("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        if self.lease_ms is not None and self.lease_ms < SHORTEST_LEASE_MS:
            raise BadOption(f"lease: {self.lease_ms} ms is too short; heartbeats need at least {SHORTEST_LEASE_MS} ms")
        return self


def _in_range(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadOption(f"{option}: {value} must be from {low} to {high}")
