"""The demo's producer: submits the mix, counts what the store acknowledged, cancels two."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Iterable

import msgspec

from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.ids import IdSource
from holdfast.core.task import NewTask
from holdfast.demo import mix
from holdfast.demo.mix import Call
from holdfast.stores.contract import MAX_BATCH, Placement, Store

_INTERVAL_SECONDS = 0.25
_BEFORE_CANCEL_SECONDS = 1.5


class DemoProducer:
    """Submits to a store; `enqueued` is what was acknowledged as new."""

    def __init__(self, store: Store, queue_suffix: str = "", seed: int | None = None) -> None:
        self.enqueued = 0
        self._store = store
        self._suffix = queue_suffix
        self._chance = random.Random(seed)  # noqa: S311  # for variety, not for secrets
        self._ids = IdSource(SystemClock().now_ms, os.urandom)

    async def submit(self, calls: Iterable[Call]) -> list[str]:
        """Records the calls; their ids."""
        waiting = iter(calls)
        task_ids: list[str] = []
        while batch := list(itertools.islice(waiting, MAX_BATCH)):
            place = await self._store.placement()
            task_ids += await self._record([self._new_task(call, place) for call in batch])
        return task_ids

    async def run(self) -> None:
        """The first load, then a trickle until it is cancelled."""
        doomed = await self.submit(mix.doomed(self._chance))
        await self.submit(mix.first_load(self._chance))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cancel(doomed))
            group.create_task(self._trickle())

    async def _trickle(self) -> None:
        while True:
            await self.submit(mix.trickle(self._chance))
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def _record(self, tasks: list[NewTask]) -> list[str]:
        """Records and counts; a cancellation waits until it is known what was recorded, or the sum would not add up."""
        recording = asyncio.ensure_future(self._store.enqueue(tasks))
        try:
            await asyncio.shield(recording)
        finally:
            answers = await recording
            self.enqueued += sum(answer.created for answer in answers)
        return [answer.task_id for answer in answers]

    async def _cancel(self, task_ids: list[str]) -> None:
        await asyncio.sleep(_BEFORE_CANCEL_SECONDS)
        await self._store.apply([lifecycle.cancel(task_id, "the demo changed its mind") for task_id in task_ids])

    def _new_task(self, call: Call, place: Placement) -> NewTask:
        options = msgspec.structs.replace(call.options, queue=call.options.queue + self._suffix)
        return options.new_task(self._ids.task_id(place(options.queue, options.request_id)), call.type, call.payload)
