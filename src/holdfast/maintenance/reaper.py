"""Claims whose lease has run out go back to `ready`, or to the dead letters when their attempts are used up."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change
from holdfast.core.task import Lapsed
from holdfast.stores.contract import Store

_BATCH = 1_000
_INTERVAL_MS = 1_000
log = logging.getLogger(__name__)


class Reaper:
    """Takes lapsed claims away; a lease that was extended meanwhile stays."""

    async def run_once(self, store: Store, epoch: int) -> int:
        """Requeues one batch; how many milliseconds until the next look."""
        lapsed = await store.expired(_BATCH)
        verdicts = await store.apply([_taken_away(claim, epoch) for claim in lapsed])
        _tell([claim for claim, verdict in zip(lapsed, verdicts, strict=True) if verdict.applied])
        return 0 if len(lapsed) == _BATCH else _INTERVAL_MS


def _tell(taken: Sequence[Lapsed]) -> None:
    """One line a worker: a lost machine must not flood the log as well."""
    for worker_id, count in Counter(claim.worker_id for claim in taken).items():
        example = next(claim.task_id for claim in taken if claim.worker_id == worker_id)
        log.warning("took %d claims away from %s: their leases ran out (%s is one)", count, worker_id, example)


def _taken_away(claim: Lapsed, epoch: int) -> Change:
    return lifecycle.lapse(
        claim.task_id,
        claim.token,
        attempt=claim.attempt,
        policy=claim.policy,
        epoch=epoch,
        detail=f"the lease of {claim.worker_id} ran out",
    )
