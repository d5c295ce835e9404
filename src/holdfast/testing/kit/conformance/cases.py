"""The list of all cases, path by path."""

from __future__ import annotations

from itertools import chain
from typing import Final

from holdfast.testing.kit.conformance import (
    batches,
    cancel,
    clock_steps,
    concurrency,
    counts,
    dead_letters,
    documents,
    enqueue,
    expires,
    extend,
    find,
    history,
    leadership,
    lease,
    occurrences,
    once,
    partition_map,
    prioritize,
    priority,
    prune,
    reopen,
    reschedule,
    reserve,
    schedule,
    schedules,
    settle,
    settle_reserve,
    steps,
    wait,
    workers,
)
from holdfast.testing.kit.conformance.registry import Case

_MODULES = (
    enqueue,
    reserve,
    priority,
    prioritize,
    reschedule,
    steps,
    settle,
    settle_reserve,
    extend,
    lease,
    clock_steps,
    once,
    schedule,
    schedules,
    occurrences,
    documents,
    expires,
    cancel,
    dead_letters,
    history,
    counts,
    find,
    workers,
    leadership,
    prune,
    batches,
    concurrency,
    wait,
    partition_map,
    reopen,
)

CASES: Final[tuple[Case, ...]] = tuple(chain.from_iterable(module.group for module in _MODULES))
