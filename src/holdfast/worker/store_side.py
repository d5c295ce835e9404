"""What a worker does at its store for all of its children: heartbeats, upkeep, settling for the dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.clock import Clock
from holdfast.core.fairness import parse_queues
from holdfast.core.schedule import Schedule
from holdfast.errors import BadApp, BadUrl, HoldfastError, StoreError
from holdfast.stores.contract import Retention, Store, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.worker.backoff import Backoff
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.crew import Crew
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.messages import Hello
from holdfast.worker.options import WorkerOptions
from holdfast.worker.remains import settle_remains

_log = logging.getLogger("holdfast.worker")

#: Keeps what the app declares as schedules, then runs the chores for as long as the worker lives.
UpkeepRunner = Callable[[Store, str, Retention, tuple[Schedule, ...]], Awaitable[None]]

#: How long after a child's death it is looked again for tasks that its last reserve may have claimed: a server goes on
#: with what it was sent, also for a client that is gone.
LOOKS_AGAIN_S = (0.5, 2.0, 10.0)
#: How long the last calls to the store may take.
LAST_CALLS_S = 5.0


class StoreSide:
    """A worker that its store knows of."""

    def __init__(self, store: Store, hello: Hello, options: WorkerOptions, crew: Crew, clock: Clock) -> None:
        self.store = store
        self.hello = hello
        self._queues = parse_queues(options.queues).queues
        self._crew = crew
        self._renewed = asyncio.Event()
        #: The dead for whom it is still looked again.
        self._mourned: dict[asyncio.Task[None], ChildProcess] = {}
        self.heartbeat = Heartbeat(store, hello.lease_ms, clock, crew, self._record)

    @classmethod
    async def open(
        cls,
        hello: Hello,
        options: WorkerOptions,
        crew: Crew,
        clock: Clock,
        observed: Callable[[Store], Store],
    ) -> StoreSide:
        """Opens the store that the first child names, and announces the worker there."""
        if hello.url.rstrip("/") == "sqlite:":
            raise BadUrl("sqlite:// lives in the memory of one process; a worker needs a file: sqlite:///holdfast.db")
        side = cls(observed(open_store(hello.url)), hello, options, crew, clock)
        try:
            await side.store.announce(side._record(), hello.lease_ms)
        except HoldfastError:
            await side.store.close()
            raise
        return side

    def renew(self, hello: Hello) -> None:
        """A later child may bring other types and schedules, but not another store: its claims would not be kept."""
        if (hello.url, hello.lease_ms) != (self.hello.url, self.hello.lease_ms):
            raise BadApp("the app names another store or lease than before; start the worker anew")
        known = (self.hello.retention, self.hello.schedules)
        self.hello = hello
        if known != (hello.retention, hello.schedules):
            self._renewed.set()

    async def settle(self, child: ChildProcess, how_it_ended: str) -> int:
        """Settles what a child has left behind; how many tasks that were."""
        settled = await self._settle(child, how_it_ended)
        if not child.drained:
            looking = asyncio.create_task(self._look_again(child, how_it_ended))
            self._mourned[looking] = child
            looking.add_done_callback(self._mourned.pop)
        return settled

    async def _settle(self, child: ChildProcess, how_it_ended: str) -> int:
        return await settle_remains(self.store, child, self._queues, self.hello.lease_ms, how_it_ended)

    async def _look_again(self, child: ChildProcess, how_it_ended: str) -> None:
        for pause_s in LOOKS_AGAIN_S:
            await asyncio.sleep(pause_s)
            try:
                if settled := await self._settle(child, how_it_ended):
                    _log.warning("child %s: %d more of its tasks were settled", child.name, settled)
            except HoldfastError as error:
                _log.warning("child %s: what its last reserve claimed waits for its lease: %s", child.name, error)

    async def keep_up(self, upkeep: UpkeepRunner, owner: str) -> None:
        """Runs the upkeep, again after an error that it did not survive, and whenever the app declares other things."""
        backoff = Backoff(base_ms=1_000, cap_ms=30_000)
        while True:
            self._renewed.clear()
            running = asyncio.ensure_future(upkeep(self.store, owner, self.hello.retention, self.hello.schedules))
            renewed = asyncio.create_task(self._renewed.wait())
            try:
                await asyncio.wait((running, renewed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                renewed.cancel()
                running.cancel()
                (ended,) = await asyncio.gather(running, return_exceptions=True)
            if not self._renewed.is_set():
                _report(ended)
                await asyncio.sleep(backoff.next_s())

    async def leave(self) -> None:
        """Takes the worker off the list."""
        try:
            async with asyncio.timeout(LAST_CALLS_S):
                for looking, child in list(self._mourned.items()):
                    looking.cancel()
                    await self._settle(child, "was killed")
                await self.store.announce(self._record(), 0)
                await self.store.close()
        except (StoreError, TimeoutError) as error:
            _log.warning("the store could not be told of the end: %s", error)

    def _record(self) -> WorkerRecord:
        return self._crew.record(self.hello.types, self._queues)


def _report(ended: BaseException | None) -> None:
    """The tasks go on without upkeep."""
    if isinstance(ended, StoreError):
        _log.warning("upkeep: %s", ended)
    else:
        _log.error("upkeep ended", exc_info=ended)
