"""What its workers left too late: expired claims go back to `ready` or to the dead letters, unstarted tasks end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.core.task import ExpiredClaim
from holdfast.stores.contract import Store

_BATCH: Final = 1_000
_INTERVAL_MS: Final = 1_000
_UNSTARTED: Final = "expired: not started in time"
log = logging.getLogger(__name__)


class Reaper:
    """Requeues expired claims, unless their lease was renewed meanwhile, and cancels tasks not started in time."""

    async def run_once(self, store: Store, epoch: int) -> int:
        """Takes one batch of both; how many milliseconds until the next look."""
        expired = await store.expired(_BATCH)
        if expired.claims:
            verdicts = await store.apply([_requeue(claim, epoch) for claim in expired.claims])
            _tell([claim for claim, verdict in zip(expired.claims, verdicts, strict=True) if verdict.applied])
        if expired.unstarted:
            await store.apply([lifecycle.expire(task_id, _UNSTARTED, epoch) for task_id in expired.unstarted])
        return 0 if _BATCH in {len(expired.claims), len(expired.unstarted)} else _INTERVAL_MS


def _tell(requeued: Sequence[ExpiredClaim]) -> None:
    """One line a worker: a lost machine must not flood the log as well."""
    for worker_id, count in Counter(claim.worker_id for claim in requeued).items():
        example = next(claim.task_id for claim in requeued if claim.worker_id == worker_id)
        log.warning("took %d claims away from %s: their leases ran out (%s is one)", count, worker_id, example)


def _requeue(claim: ExpiredClaim, epoch: int) -> Change:
    return lifecycle.expire_lease(
        claim.task_id,
        claim.token,
        attempt=claim.attempt,
        policy=claim.policy,
        epoch=epoch,
        detail=f"the lease of {claim.worker_id} ran out",
    )
