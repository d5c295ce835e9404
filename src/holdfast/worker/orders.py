"""How many tasks each child runs at once: as started, by signal, or by an operator's order."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.stores.contract import WorkerOrders
from holdfast.worker.options import MAX_CONCURRENCY

_log = logging.getLogger("holdfast.worker")


class Concurrency:
    """The current number; whoever changed it last has decided."""

    def __init__(self, started_with: int, changed: Callable[[int], None]) -> None:
        self._started_with = started_with
        self._changed = changed
        #: An order comes with every heartbeat, and counts when it is new.
        self._last_order: int | None = None
        self.current = started_with

    def step(self, by: int) -> None:
        """One more or one less, within what is possible."""
        self._set(self.current + by, "by signal")

    def heed(self, orders: WorkerOrders | None) -> None:
        """What the store has for this worker."""
        ordered = orders.concurrency if orders else None
        if ordered != self._last_order:
            self._last_order = ordered
            self._set(self._started_with if ordered is None else ordered, "by order")

    def _set(self, concurrency: int, why: str) -> None:
        bounded = min(max(concurrency, 1), MAX_CONCURRENCY)
        if bounded != self.current:
            _log.info("concurrency: %d instead of %d, %s", bounded, self.current, why)
            self.current = bounded
            self._changed(bounded)
