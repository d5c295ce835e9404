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
    duty,
    enqueue,
    extend,
    find,
    history,
    lease,
    once,
    partition_map,
    priority,
    prune,
    reopen,
    reserve,
    schedule,
    settle,
    settle_reserve,
    wait,
    workers,
)
from holdfast.testing.conformance.registry import Case

_MODULES = (
    enqueue,
    reserve,
    priority,
    settle,
    settle_reserve,
    extend,
    lease,
    once,
    schedule,
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
