"""Counts the runs of a child, and tells the supervisor about once a second of what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

from holdfast.observe.exposition import available
from holdfast.observe.observed_store import ObservedStore
from holdfast.observe.runs import RunTally
from holdfast.observe.tally import Tally
from holdfast.stores.contract import Store
from holdfast.worker.messages import Counted, FromChild
from holdfast.worker.options import WorkerOptions
from holdfast.worker.slots import Slots

REPORT_S: Final = 1.0

Tell = Callable[[FromChild], Awaitable[None]]


@runtime_checkable
class Watchable(Protocol):
    """An app whose stores can be observed."""

    def watch_stores(self, observed: Callable[[Store], Store]) -> None:
        """Every store that it opens from now on is used through what this makes of it."""
        ...


class Counting:
    """Beside the slots of a child, and between it and its store."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._tally = Tally()
        self._runs = RunTally(self._tally)
        self._slots: Slots | None = None

    @classmethod
    def by(cls, options: WorkerOptions, tell: Tell) -> Counting | None:
        """None where nobody could read it."""
        return cls(tell) if counts(options) else None

    def observed(self, store: Store) -> Store:
        """The store, its calls counted too."""
        return ObservedStore(store, self._tally)

    def watch(self, slots: Slots) -> None:
        """Counts what runs here."""
        self._slots = slots
        slots.count = self._runs.note_ended

    async def tell(self, message: FromChild) -> None:
        """As the child tells the supervisor: at the end of every exchange, before the new tasks are started."""
        self._runs.flush()
        await self._tell(message)

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self.report()

    async def report(self) -> None:
        """Tells what was counted since the last time; nothing, if that was nothing."""
        if self._slots is not None:
            self._runs.note_begun(self._slots.running.values())
        self._runs.flush()
        if counts := self._tally.take():
            await self._tell(Counted(counts))


def counts(options: WorkerOptions) -> bool:
    """Whether there is somewhere to read the metrics of this worker, and the package that writes them."""
    return options.health is not None and available()
