"""The queues of a store, from the code of an app: what waits in them, whether they go on, what priority is worth."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.durations import Duration
from holdfast.core.names import check_queue
from holdfast.core.priority import Order, step_of
from holdfast.producer.portal import StoreLink
from holdfast.stores import documents
from holdfast.stores.contract import QueueCounts


class Queues:
    """What `app.queues` gives."""

    __slots__ = ("_link",)

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def alist(self) -> Sequence[QueueCounts]:
        """The queues that have tasks, are paused or have an order of their own, by name."""
        return await self._link.store().counts()

    async def apause(self, queue: str) -> None:
        """Stops handing out tasks of this queue; what is running goes on."""
        await self._pause(queue, True)

    async def aresume(self, queue: str) -> None:
        """Hands out tasks of this queue again."""
        await self._pause(queue, False)

    async def aset_order(self, queue: str, order: Order, step: Duration | None = None) -> None:
        """`strict`: always the highest priority first. `aged`: each level of priority is worth a step of waiting.

        Holds at once, for the tasks that wait already too.
        """
        check_queue(queue)
        step_ms = step_of(order, step)
        await documents.set_step(self._link.store(), queue, step_ms)

    async def _pause(self, queue: str, paused: bool) -> None:
        check_queue(queue)
        await documents.pause(self._link.store(), queue, paused)

    # -- the same for sync callers --------------------------------------------------------------------------

    def list(self) -> Sequence[QueueCounts]:
        """The queues that have tasks, are paused or have an order of their own, by name."""
        return self._link.run(self.alist())

    def pause(self, queue: str) -> None:
        """Stops handing out tasks of this queue; what is running goes on."""
        self._link.run(self.apause(queue))

    def resume(self, queue: str) -> None:
        """Hands out tasks of this queue again."""
        self._link.run(self.aresume(queue))

    def set_order(self, queue: str, order: Order, step: Duration | None = None) -> None:
        """`strict`: always the highest priority first. `aged`: each level of priority is worth a step of waiting.

        Holds at once, for the tasks that wait already too.
        """
        self._link.run(self.aset_order(queue, order, step))
