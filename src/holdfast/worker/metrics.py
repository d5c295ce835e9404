"""The metrics of a worker, as its supervisor tells them."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.observe.backlog import Backlog, Gauge
from holdfast.observe.exposition import page
from holdfast.observe.names import UPKEEP, WORKER_CHILDREN, WORKER_MEMORY, WORKER_SLOTS
from holdfast.observe.observed_store import Duties, ObservedStore
from holdfast.stores.contract import Store
from holdfast.worker.crew import Crew


class WorkerMetrics:
    """What the children have counted, what the supervisor does at the store, and what it sees there.

    The whole store is looked at only by a worker that does upkeep: of many workers, few do.
    """

    def __init__(self, crew: Crew, clock: Clock, *, on: bool) -> None:
        #: Whether anything is counted at all.
        self.on = on
        self._crew = crew
        self._clock = clock
        self._duties = Duties()
        self._backlog: Backlog | None = None

    def observed(self, store: Store) -> Store:
        """The supervisor's store, its calls counted too."""
        if not self.on:
            return store
        observed = ObservedStore(store, self._crew.tally, self._duties)
        self._backlog = Backlog(observed, self._clock)
        return observed

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in a format that the reader accepts, and its name."""
        held = self._duties.held()
        gauges = [*self._own(), (UPKEEP, (), float(held))]
        if held and self._backlog is not None:
            gauges += await self._backlog.gauges()
        return page(self._crew.tally, gauges, accept)

    def _own(self) -> list[Gauge]:
        children = list(self._crew.children())
        serving = [child for child in children if child.serving]
        busy = sum(child.running for child in children)
        free = sum(max(0, child.slots - child.running) for child in serving)
        return [
            (WORKER_SLOTS, ("busy",), busy),
            (WORKER_SLOTS, ("free",), 0 if self._crew.closed else free),
            (WORKER_CHILDREN, (), len(children)),
            (WORKER_MEMORY, (), self._crew.memory_bytes()),
        ]
