"""The way from a producer to its store: sync or async, and patient when the store is away for a moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.core.sealing import Sealing, is_sealed, needs_key
from holdfast.core.task import Task
from holdfast.errors import StoreUnavailable
from holdfast.producer.portal import Portal
from holdfast.stores.contract import Store

T = TypeVar("T")

#: Explains in one or more lines why a task stands where it stands.
Explain = Callable[[Store, str], Awaitable[str]]

_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.05


class Link:
    """What task types and handles share: the store of this process, the sync face, and `why`."""

    def __init__(
        self, store: Callable[[], Store], portal: Portal, explain: Explain, sealing: Sealing | None = None
    ) -> None:
        self.store = store
        self.run = portal.run
        self.start = portal.start
        self._explain = explain
        self._sealing = sealing

    async def insist(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """The answer to a call that may be repeated; a store that is away is asked a few times more."""
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_TRIES - 1):
            try:
                return await call(self.store())
            except StoreUnavailable:
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # spreads load, hides nothing
                pause *= 2
        return await call(self.store())

    async def why(self, task_id: str) -> str:
        """Why the task stands where it stands."""
        return await self._explain(self.store(), task_id)

    def opened(self, task: Task, result: bytes) -> bytes:
        """The result of a task as its function gave it, whether it was encrypted or not."""
        if self._sealing is not None:
            return self._sealing.opened_result(task, result)
        if is_sealed(result):
            raise needs_key(result, f"the result of task {task.task_id}")
        return result
