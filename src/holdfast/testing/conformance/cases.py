"""The list of all cases, path by path."""

from __future__ import annotations

from itertools import chain
from typing import Final

from holdfast.testing.conformance import (
    batches,
    cancel,
    concurrency,
    counts,
    dead_letters,
    documents,
    duty,
    enqueue,
    expires,
    extend,
    find,
    history,
    lease,
    once,
    partition_map,
    prioritize,
    priority,
    prune,
    reopen,
    reserve,
    schedule,
    schedules,
    settle,
    settle_reserve,
    steps,
    ticks,
    wait,
    workers,
)
from holdfast.testing.conformance.registry import Case

_MODULES = (
    enqueue,
    reserve,
    priority,
    prioritize,
    steps,
    settle,
    settle_reserve,
    extend,
    lease,
    once,
    schedule,
    schedules,
    ticks,
    documents,
    expires,
    cancel,
    dead_letters,
    history,
    counts,
    find,
    workers,
    duty,
    prune,
    batches,
    concurrency,
    wait,
    partition_map,
    reopen,
)

CASES: Final[tuple[Case, ...]] = tuple(chain.from_iterable(module.group for module in _MODULES))
