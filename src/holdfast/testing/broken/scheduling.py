"""Bugs of schedules, and of orders to workers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.schedule import Schedule
from holdfast.core.task import NewTask
from holdfast.stores.contract import DueSchedules, Store, WorkerOrders, WorkerRecord
from holdfast.testing.broken.base import BrokenStore
from holdfast.testing.clock import SteppedClock


class PutIgnoresTheVersion(BrokenStore):
    """The last writer wins, whatever it has read: edits are lost, and ticks are made twice."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """In place of whatever is there."""
        current = await self.inner.schedule(name)
        del expected
        return await self.inner.put_schedule(name, new, current.version if current else 0, tasks, epoch)


class RefusedTickMakesItsTasks(BrokenStore):
    """Whoever comes too late with a tick is told so, and its tasks are recorded all the same."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Tasks first."""
        await self.inner.enqueue(tasks)
        return await self.inner.put_schedule(name, new, expected, (), epoch)


class TickInTwoSteps(BrokenStore):
    """The version is looked at before the transaction: two that look at once both make the tick."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """A look, and then the rest."""
        current = await self.inner.schedule(name)
        if current is not None and current.version == expected:
            await self.inner.enqueue(tasks)
        return await self.inner.put_schedule(name, new, expected, tasks, epoch)


class TickWithoutTasks(BrokenStore):
    """A tick moves the schedule on, and its tasks are lost on the way."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Without its first task."""
        return await self.inner.put_schedule(name, new, expected, tasks[1:], epoch)


class RepeatedPutIsRefused(BrokenStore):
    """The same put again is refused: whoever lost the reply believes that another one was faster."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """No repeats."""
        if new is not None and await self.inner.schedule(name) == new:
            return False
        return await self.inner.put_schedule(name, new, expected, tasks, epoch)


class RepeatedTickTicksAgain(BrokenStore):
    """The same tick again records its tasks again, if they have come and gone meanwhile."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Tasks with every success."""
        done = await self.inner.put_schedule(name, new, expected, (), epoch)
        if done:
            await self.inner.enqueue(tasks)
        return done


class TickOfAFormerOwner(BrokenStore):
    """The ticks of a process that is not the owner any more are made."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """By anybody."""
        del epoch
        return await self.inner.put_schedule(name, new, expected, tasks, None)


class RemovedScheduleStays(BrokenStore):
    """A removal is answered and does nothing."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Only what is new."""
        return new is None or await self.inner.put_schedule(name, new, expected, tasks, epoch)


class ScheduleLosesItsCall(BrokenStore):
    """Headers and policy of a schedule's call are not kept."""

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """The name of the type is enough."""
        kept = new and msgspec.structs.replace(new, call=type(new.call)(type=new.call.type, queue=new.call.queue))
        return await self.inner.put_schedule(name, kept, expected, tasks, epoch)


class DueEarly(BrokenStore):
    """Schedules are due 50 ms before their ticks."""

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Within 50 ms more."""
        return await self.inner.schedules(None if due_within_ms is None else due_within_ms + 50, limit)


class DueInAnyOrder(BrokenStore):
    """Schedules come by their names: with many of them due, the oldest tick may never have its turn."""

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """By name."""
        answer = await self.inner.schedules(due_within_ms)
        by_name = sorted(answer.schedules, key=lambda schedule: schedule.name)
        return msgspec.structs.replace(answer, schedules=by_name[:limit])


class PausedIsNotListed(BrokenStore):
    """A schedule without a next tick cannot be found by looking."""

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Those that tick."""
        answer = await self.inner.schedules(due_within_ms, limit)
        ticking = [schedule for schedule in answer.schedules if schedule.next_at_ms is not None]
        return msgspec.structs.replace(answer, schedules=ticking)


class OrdersToldOnce(BrokenStore):
    """A worker that misses the answer to one heartbeat never hears its orders."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._told: WorkerOrders | None = None

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """What was not told yet."""
        orders = await self.inner.announce(worker, ttl_ms)
        told, self._told = self._told, orders
        return None if orders == told else orders


class OrdersOutliveTheWorker(BrokenStore):
    """Orders are kept by the name of the worker, for whoever comes under that name."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._orders: dict[str, WorkerOrders] = {}

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Noted down."""
        known = await self.inner.order(worker_id, orders)
        self._orders.update({worker_id: orders} if known else {})
        return known

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """From memory."""
        await self.inner.announce(worker, ttl_ms)
        return self._orders.get(worker.worker_id) if ttl_ms else None


class OrdersForNobody(BrokenStore):
    """Orders for a worker that is not there are taken, and nobody will hear them."""

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Always fine."""
        await self.inner.order(worker_id, orders)
        return True
