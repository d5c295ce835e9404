"""Scheduled tasks and retries whose time has come become `ready`."""

from __future__ import annotations

from holdfast.stores.contract import Store

_BATCH = 1_000
#: The store is also checked without a wake-up: a lost one costs at most this delay.
_SAFETY_POLL_MS = 1_000


class Promoter:
    """Promotes what is due, and knows when to come back."""

    async def run_once(self, store: Store, epoch: int) -> int:
        """Promotes one batch; how many milliseconds until the next one is due."""
        promoted = await store.promote(epoch, _BATCH)
        if promoted.count == _BATCH:
            return 0
        due_in_ms = promoted.next_due_in_ms
        return _SAFETY_POLL_MS if due_in_ms is None else min(due_in_ms, _SAFETY_POLL_MS)
