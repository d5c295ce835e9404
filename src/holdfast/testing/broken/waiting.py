"""Bugs of deadlines to start, priorities that change, and steps of queues."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.lifecycle import Change, Event, Verdict, sources
from holdfast.core.priority import AGED_STEP_MS, STRICT_STEP_MS
from holdfast.core.task import Enqueued, NewTask, State, Task
from holdfast.stores.contract import Reserve, Reserved, Store
from holdfast.testing.broken.base import BrokenStore, TranslatingStore
from holdfast.testing.clock import SteppedClock


class OverdueEarly(BrokenStore):
    """Tasks are found to be overdue 50 ms before their deadline."""

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """As of 50 ms later."""
        self.clock.advance(50)
        answer = await self.inner.overdue(limit)
        self.clock.advance(-50)
        return answer


class OverdueToldOnce(BrokenStore):
    """Whoever asks for the overdue tasks is the only one to be told: if it dies, they wait for ever."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._told: set[str] = set()

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Those not told yet."""
        found = [task_id for task_id in await self.inner.overdue(limit) if task_id not in self._told]
        self._told.update(found)
        return found


class ScheduledIsNeverOverdue(BrokenStore):
    """A delayed task outlives its deadline."""

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Ready ones only."""
        found = await self.inner.get(await self.inner.overdue(limit))
        return [task.task_id for task in found if task and task.state is State.READY]


class BegunTaskExpires(TranslatingStore):
    """A deadline to start strikes a task that has begun."""

    async def translated(self, change: Change) -> Change:
        """A cancellation like any other."""
        return msgspec.structs.replace(change, event=Event.CANCEL) if change.event is Event.EXPIRE else change


class ExpiredWithoutReason(TranslatingStore):
    """A task that expired does not say so."""

    async def translated(self, change: Change) -> Change:
        """For no reason."""
        return msgspec.structs.replace(change, reason=None) if change.event is Event.EXPIRE else change


class _Overridden(TranslatingStore):
    """Shows other priorities than the good store has."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self.shown: dict[str, int] = {}

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """With the priorities to show."""
        found = await self.inner.get(task_ids)
        return [
            task and msgspec.structs.replace(task, priority=self.shown.get(task.task_id, task.priority))
            for task in found
        ]

    async def overrides(self, change: Change, states: Sequence[State]) -> Verdict | None:
        """The verdict on a change of priority in one of these states, which is noted down and goes no further."""
        task = await self.task(change.task_id)
        if change.event is not Event.PRIORITIZE or task is None or task.state not in states:
            return None
        self.shown[task.task_id] = change.priority
        return Verdict(True, state=task.state)


class RunningTaskIsPrioritized(_Overridden):
    """A task that a worker holds gets another priority."""

    async def _apply_one(self, change: Change) -> Verdict:
        return await self.overrides(change, [State.CLAIMED]) or await super()._apply_one(change)


class PriorityWithoutItsPlace(_Overridden):
    """A changed priority is shown, and the task stands where it stood."""

    async def _apply_one(self, change: Change) -> Verdict:
        return await self.overrides(change, sources(Event.PRIORITIZE)) or await super()._apply_one(change)


class PriorityChangesTheTime(TranslatingStore):
    """A delayed task that gets another priority is due at once."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._moved: set[str] = set()

    async def translated(self, change: Change) -> Change:
        """Noted down."""
        self._moved |= {change.task_id} if change.event is Event.PRIORITIZE else set()
        return change

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """As of now."""
        return [
            msgspec.structs.replace(task, run_at_ms=self.clock.now_ms())
            if task and task.task_id in self._moved
            else task
            for task in await self.inner.get(task_ids)
        ]


class StrictAges(BrokenStore):
    """A strict queue is one with a long step: what has waited long enough goes before what is urgent."""

    async def set_step(self, queue: str, step_ms: int) -> None:
        """An hour at most."""
        await self.inner.set_step(queue, min(step_ms, 3_600_000))


class AgedStarves(BrokenStore):
    """Whatever step is asked for, priority alone counts."""

    async def set_step(self, queue: str, step_ms: int) -> None:
        """Strict, always."""
        del step_ms
        await self.inner.set_step(queue, STRICT_STEP_MS)


class StepForNewTasksOnly(BrokenStore):
    """Tasks that wait when the step changes stay where they are."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._steps: dict[str, int] = {}

    async def set_step(self, queue: str, step_ms: int) -> None:
        """Kept for later."""
        self._steps[queue] = step_ms

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Now it is later."""
        while self._steps:
            await self.inner.set_step(*self._steps.popitem())
        return await self.inner.enqueue(tasks)


class StepOfAllQueues(BrokenStore):
    """A step that is set for one queue holds in all."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._queues: set[str] = set()

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Queues noted down."""
        self._queues |= {task.queue for task in tasks}
        return await self.inner.enqueue(tasks)

    async def set_step(self, queue: str, step_ms: int) -> None:
        """Everywhere."""
        for each in self._queues | {queue}:
            await self.inner.set_step(each, step_ms)


class StepForgottenAfterReopen(BrokenStore):
    """Steps last until the store is closed."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._queues: set[str] = set()

    async def set_step(self, queue: str, step_ms: int) -> None:
        """For now."""
        self._queues.add(queue)
        await self.inner.set_step(queue, step_ms)

    async def close(self) -> None:
        """As if nothing had been set."""
        for queue in self._queues:
            await self.inner.set_step(queue, AGED_STEP_MS)
        await self.inner.close()


class ReadyWhenRecorded(BrokenStore):
    """A delay that was asked for counts as time that a task has waited."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """As if every task had been ready at once."""
        answer = await self.inner.reserve(request, settle)
        tasks = [msgspec.structs.replace(task, ready_at_ms=task.created_at_ms) for task in answer.tasks]
        return msgspec.structs.replace(answer, tasks=tasks)


class ClaimedWhenTold(BrokenStore):
    """A worker that asks again is told that its claim is as young as the answer."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """By the time of the call."""
        answer = await self.inner.reserve(request, settle)
        now_ms = self.clock.now_ms()
        tasks = [msgspec.structs.replace(task, claimed_at_ms=now_ms) for task in answer.tasks]
        return msgspec.structs.replace(answer, tasks=tasks)
