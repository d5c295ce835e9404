"""The gateway: a store, who may use it, and who waits at it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from holdfast.api.bodies import BodyRoom
from holdfast.api.failures import where
from holdfast.api.feed import Feed
from holdfast.api.guard import Guard
from holdfast.api.polling import Polls
from holdfast.api.results import Results
from holdfast.api.task_queues import TaskQueues
from holdfast.api.waiters import Waiters
from holdfast.clock import Clock, SystemClock
from holdfast.core import payload
from holdfast.core.ids import IdSource
from holdfast.errors import StoreUnavailable
from holdfast.maintenance.service import Upkeep
from holdfast.observe.gateway import GatewayMetrics
from holdfast.stores.contract import Placement, Retention, Store
from holdfast.wire.limits import LONGEST_WAIT_MS, MAX_BATCH_BYTES, MAX_BODIES_BYTES, MAX_BODY_BYTES

log = logging.getLogger("holdfast.api")

_READY_MS: Final = 1_000


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway is set up."""

    #: Promotes, requeues, ticks and prunes, as a worker does.
    upkeep: bool = True
    retention: Retention = Retention()
    max_body_bytes: int = MAX_BODY_BYTES
    max_batch_bytes: int = MAX_BATCH_BYTES
    #: Of all requests together.
    max_bodies_bytes: int = MAX_BODIES_BYTES
    #: Arguments and results.
    max_payload_bytes: int = payload.MAX_BYTES
    longest_wait_ms: int = LONGEST_WAIT_MS
    #: What clients call it, besides the names of this machine; none: whatever they like, if it listens to others.
    names: tuple[str, ...] = ()


class Gateway:
    """What the routes share; opened and closed with the server that it is part of."""

    def __init__(
        self, store: Store, guard: Guard, settings: GatewaySettings | None = None, *, clock: Clock | None = None
    ) -> None:
        self.guard = guard
        self.settings = settings or GatewaySettings()
        self.clock = clock or SystemClock()
        self.metrics = GatewayMetrics(store, self.clock)
        self.store = store = self.metrics.store
        self.ids = IdSource(self.clock.now_ms, os.urandom)
        self.body_room = BodyRoom(self.settings.max_bodies_bytes)
        self.waiters = Waiters(store)
        self.polls = Polls(store, self.waiters)
        self.results = Results(store)
        self.feed = Feed(store)
        self.task_queues = TaskQueues(store)
        self.leaving = False
        self._placement: Placement | None = None
        #: When the store has answered last.
        self._ready_at_ms = -_READY_MS
        #: Who looks after the store, in its list of duties.
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Mapping[str, object]]:
        """Serves while the block runs: the lifespan of an ASGI app."""
        await self._prepare()
        upkeep = asyncio.create_task(self._upkeep()) if self.settings.upkeep else None
        try:
            yield {}
        finally:
            self.leave()
            if upkeep is not None:
                upkeep.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await upkeep
            await self.waiters.close()
            await self.polls.close()
            await self.results.close()
            await self.feed.close()
            await self.metrics.close()
            await self.store.close()

    def leave(self) -> None:
        """Lets everybody go who waits: polls with an empty list, listeners with the end of their stream."""
        self.leaving = True
        self.waiters.release_all()
        self.results.release_all()
        self.feed.release_all()

    async def placement(self) -> Placement:
        """Where new tasks go."""
        if self._placement is None:
            self._placement = await self.store.placement()
        return self._placement

    async def partitions(self) -> Sequence[Store]:
        """Those of the store; if that is a gateway too, it is waited for, and holds up nobody meanwhile."""
        return await asyncio.to_thread(self.store.partitions)

    async def check_ready(self) -> None:
        """Raises if this gateway cannot do its work now; the store is asked once a second at most."""
        if self.leaving:
            raise StoreUnavailable("the gateway is shutting down")
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._ready_at_ms >= _READY_MS:
            await self.store.partition_map()
            self._ready_at_ms = now_ms

    async def _prepare(self) -> None:
        try:
            await self.store.migrate()
        except StoreUnavailable as error:
            log.warning("the store is not there yet, requests will be refused until it is: %s", error)

    async def _upkeep(self) -> None:
        while True:
            try:
                await self.partitions()  # the upkeep asks again, and a gateway has told it by then
                await Upkeep(self.store, self.name, self.settings.retention, random_unit=random.random).run()
            except Exception as error:  # noqa: BLE001  (a gateway without upkeep would leave tasks lying)
                log.error("the upkeep has failed and begins again: %s", where(error))
                await asyncio.sleep(1)
