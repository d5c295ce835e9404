"""The metrics of a server: its store, what stands in it, and the runs of workers that have no metrics of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import Claimed
from holdfast.observe.backlog import Backlog
from holdfast.observe.exposition import page
from holdfast.observe.metrics import MAINTENANCE_LED, Tally
from holdfast.observe.observed_store import Leaderships, ObservedStore
from holdfast.observe.runs import RunTally
from holdfast.stores.contract import Store

#: Claims that are remembered from the reserve to the settlement; beyond that, the oldest is settled uncounted.
MAX_CLAIMS: Final = 100_000


@dataclass(slots=True)
class _ForeignRun:
    """A claim, as far as a server sees of it; the worker runs it elsewhere."""

    task: Claimed
    began_at_ns: int
    noted: bool = False
    settled: bool = False


class ServerMetrics:
    """Counts while a server serves."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._tally = Tally()
        self._leaderships = Leaderships()
        #: What the server is to use in place of its store.
        self.store: Store = ObservedStore(store, self._tally, self._leaderships)
        self._backlog = Backlog(self.store, clock)
        self._runs = RunTally(self._tally)
        self._claims: dict[str, _ForeignRun] = {}

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in a format that the reader accepts, and its name."""
        self._runs.flush()
        gauges = [(MAINTENANCE_LED, (), float(self._leaderships.held())), *await self._backlog.gauges()]
        return page(self._tally, gauges, accept, with_process=True)

    async def close(self) -> None:
        """Ends what may be under way."""
        await self._backlog.close()

    def began(self, tasks: Sequence[Claimed]) -> None:
        """These were handed out to a worker that tells nothing of itself."""
        now_ns = monotonic_ns()
        for task in tasks:
            known = self._claims.get(task.task_id)
            if known is None or known.task.token != task.token:  # else: a repeat of the same reserve
                run = _ForeignRun(replace(task, payload=b"", headers={}), now_ns)
                self._runs.note_begun([run])
                self._claims[task.task_id] = run
        while len(self._claims) > MAX_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def ended(self, changes: Sequence[Change], verdicts: Sequence[Verdict]) -> None:
        """Such a worker settled these; each is counted once, if its settlement was accepted."""
        for change, verdict in zip(changes, verdicts, strict=True):
            known = self._claims.get(change.task_id)
            if known is not None and known.task.token == change.token and verdict.applied:
                del self._claims[change.task_id]
                self._runs.note_ended(known, change)
