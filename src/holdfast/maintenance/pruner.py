"""Finished tasks are kept for a set time, then deleted: nothing grows for ever."""

from __future__ import annotations

from holdfast.stores.contract import Retention, Store

#: Small enough to hold the write lock for a few milliseconds only.
_BATCH = 500
_INTERVAL_MS = 10_000
_PAUSE_BETWEEN_BATCHES_MS = 20


class Pruner:
    """Deletes what is past its retention, a little at a time."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention

    async def run_once(self, store: Store, epoch: int) -> int:
        """Deletes one batch; how many milliseconds until the next."""
        pruned = await store.prune(epoch, self._retention, _BATCH)
        return _PAUSE_BETWEEN_BATCHES_MS if pruned == _BATCH else _INTERVAL_MS
