"""Every metric: its name, its labels, what it means. The code, the board, the alerts and the docs go by this table.

Labels are bounded: names of queues and task types up to `MAX_PAIRS` pairs, and words of our own. Never an id, an
argument or the text of an error.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

#: So many pairs of queue and type are counted apart in one process, and all others together.
MAX_PAIRS: Final = 100
OTHER: Final = "other"

#: Of runs and of waiting: from what takes no time to what takes half an hour.
_LONG_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800)
#: Of calls to the store.
_SHORT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Kind(StrEnum):
    """What a metric does."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Teller(StrEnum):
    """Who tells of it."""

    WORKER = "worker"
    GATEWAY = "gateway"
    BOTH = "both"


class Metric(msgspec.Struct, frozen=True, eq=False):
    """One line of the table; equal to itself only."""

    name: str
    kind: Kind
    teller: Teller
    text: str
    labels: tuple[str, ...] = ()
    #: Upper bounds in seconds.
    buckets: tuple[float, ...] = ()


def _counter(name: str, teller: Teller, text: str, *labels: str) -> Metric:
    return Metric(f"holdfast_{name}_total", Kind.COUNTER, teller, text, labels)


def _gauge(name: str, teller: Teller, text: str, *labels: str) -> Metric:
    return Metric(f"holdfast_{name}", Kind.GAUGE, teller, text, labels)


def _histogram(name: str, teller: Teller, text: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(f"holdfast_{name}_seconds", Kind.HISTOGRAM, teller, text, labels, buckets)


TASKS_ENQUEUED: Final = _counter("tasks_enqueued", Teller.BOTH, "Tasks recorded through this process.", "queue", "type")
RUNS_STARTED: Final = _counter("runs_started", Teller.BOTH, "Runs that have begun.", "queue", "type")
RUNS_ENDED: Final = _counter(
    "runs_ended",
    Teller.BOTH,
    "Runs that have ended: succeeded, retried, failed, dead_lettered, cancelled, snoozed, released, or lost.",
    "queue",
    "type",
    "outcome",
)
RUN_SECONDS: Final = _histogram(
    "run", Teller.BOTH, "How long runs took, however they ended.", "queue", "type", buckets=_LONG_SECONDS
)
WAIT_SECONDS: Final = _histogram(
    "wait",
    Teller.BOTH,
    "How long tasks were ready before they were claimed; a delay, a backoff or a snooze is not counted.",
    "queue",
    "type",
    buckets=_LONG_SECONDS,
)
CLAIMS_LOST: Final = _counter(
    "claims_lost",
    Teller.BOTH,
    "Claims that were taken away: lease_expired by the upkeep, worker_lost by the worker whose child died.",
    "cause",
)
SETTLEMENTS_REFUSED: Final = _counter(
    "settlements_refused", Teller.BOTH, "Settlements that came too late, by what was to be settled.", "event", "reason"
)
STORE_SECONDS: Final = _histogram(
    "store", Teller.BOTH, "How long calls to the store took.", "method", buckets=_SHORT_SECONDS
)
STORE_ERRORS: Final = _counter("store_errors", Teller.BOTH, "Calls to the store that failed.", "method", "error")
STORE_UP: Final = _gauge("store_up", Teller.BOTH, "Whether the last look at the store succeeded.")
QUEUE_TASKS: Final = _gauge("queue_tasks", Teller.BOTH, "Tasks of a queue in each state.", "queue", "state")
QUEUE_OLDEST: Final = _gauge(
    "queue_oldest_ready_seconds", Teller.BOTH, "How long the oldest ready task of a queue has been waiting.", "queue"
)
QUEUE_PAUSED: Final = _gauge("queue_paused", Teller.BOTH, "Whether a queue is paused.", "queue")
WORKERS: Final = _gauge("workers", Teller.BOTH, "Workers that the store knows: running, draining, silent.", "status")
SLOTS: Final = _gauge("slots", Teller.BOTH, "Slots of all workers that are not silent: busy, free.", "state")
WORKER_SLOTS: Final = _gauge("worker_slots", Teller.WORKER, "Slots of this worker: busy, free.", "state")
WORKER_CHILDREN: Final = _gauge("worker_children", Teller.WORKER, "Child processes of this worker.")
WORKER_MEMORY: Final = _gauge("worker_memory_bytes", Teller.WORKER, "Memory of this worker and its children.")
UPKEEP: Final = _gauge("upkeep_partitions", Teller.BOTH, "Partitions whose upkeep this process does.")
BUILD: Final = _gauge("build_info", Teller.BOTH, "Always 1; the version of Holdfast.", "version")

METRICS: Final = (
    TASKS_ENQUEUED,
    RUNS_STARTED,
    RUNS_ENDED,
    RUN_SECONDS,
    WAIT_SECONDS,
    CLAIMS_LOST,
    SETTLEMENTS_REFUSED,
    STORE_SECONDS,
    STORE_ERRORS,
    STORE_UP,
    QUEUE_TASKS,
    QUEUE_OLDEST,
    QUEUE_PAUSED,
    WORKERS,
    SLOTS,
    WORKER_SLOTS,
    WORKER_CHILDREN,
    WORKER_MEMORY,
    UPKEEP,
    BUILD,
)
