"""Tasks that no worker began in time are cancelled: what comes too late need not come at all."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.stores.contract import Store

_BATCH = 1_000
_INTERVAL_MS = 1_000
_REASON = "expired: not started in time"


class Expirer:
    """Cancels what is past its deadline to start; a worker that begins it first wins."""

    async def run_once(self, store: Store, epoch: int) -> int:
        """Cancels one batch; how many milliseconds until the next look."""
        overdue = await store.overdue(_BATCH)
        if overdue:
            await store.apply([lifecycle.expire(task_id, _REASON, epoch) for task_id in overdue])
        return 0 if len(overdue) == _BATCH else _INTERVAL_MS
