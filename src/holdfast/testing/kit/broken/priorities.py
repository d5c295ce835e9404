"""Bugs of tasks that expire, of priorities that change, and of steps of queues."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.lifecycle import Change, Event, Verdict, sources, target
from holdfast.core.priority import AGED_STEP_MS, STRICT_STEP_MS
from holdfast.core.task import Enqueued, NewTask, State, Task
from holdfast.stores import documents
from holdfast.stores.contract import Document, DocumentResult, DocumentWrite, Reserve, Reserved, Store
from holdfast.stores.documents import QUEUE, QueueSettings, queue_settings_of
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import BrokenStore, DocumentBug, TranslatingStore


class BegunTaskExpires(TranslatingStore):
    """A deadline to start strikes a task that has begun."""

    async def translated(self, change: Change) -> Change:
        """A cancellation like any other."""
        return replace(change, event=Event.CANCEL) if change.event is Event.EXPIRE else change


class ExpiredWithoutReason(TranslatingStore):
    """A task that expired does not say so."""

    async def translated(self, change: Change) -> Change:
        """For no reason."""
        return replace(change, reason=None) if change.event is Event.EXPIRE else change


class RescheduleIgnoresItsDelay(TranslatingStore):
    """A task that was to run later runs now."""

    async def translated(self, change: Change) -> Change:
        """At once."""
        return replace(change, delay_ms=0) if change.event is Event.RESCHEDULE else change


class RescheduleKeepsTheTime(TranslatingStore):
    """A task that was to run at another time runs when it was to run before."""

    async def _apply_one(self, change: Change) -> Verdict:
        task = await self.task(change.task_id)
        if change.event is not Event.RESCHEDULE or task is None or task.state not in sources(Event.RESCHEDULE):
            return await super()._apply_one(change)
        return Verdict(True, state=target(task.state, Event.RESCHEDULE))


class _Overridden(TranslatingStore):
    """Shows other priorities than the good store has."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self.shown: dict[str, int] = {}

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """With the priorities to show."""
        found = await self.inner.get(task_ids)
        return [task and replace(task, priority=self.shown.get(task.task_id, task.priority)) for task in found]

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
    """A changed priority is shown, and the task keeps its old place."""

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
            replace(task, run_at_ms=self.clock.now_ms()) if task and task.task_id in self._moved else task
            for task in await self.inner.get(task_ids)
        ]


class _StepBug(DocumentBug):
    """A good store that gets other steps of queues than were asked for."""

    kinds = frozenset({QUEUE})

    def step_ms(self, asked_ms: int) -> int:
        """The step that the good store gets."""
        return asked_ms

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """With another step, if one was asked for."""
        settings = _settings(write)
        if settings.step_ms == AGED_STEP_MS:
            return await self.inner.put(write)
        return await self.inner.put(_with_step(write, self.step_ms(settings.step_ms)))


def _settings(write: DocumentWrite) -> QueueSettings:
    document = None if write.value is None else Document(write.kind, write.name, write.value, 1)
    return queue_settings_of(document)


def _with_step(write: DocumentWrite, step_ms: int) -> DocumentWrite:
    return replace(write, value=msgspec.json.encode(replace(_settings(write), step_ms=step_ms)))


class StrictAges(_StepBug):
    """A strict queue is one with a long step: what has waited long enough goes before what is urgent."""

    def step_ms(self, asked_ms: int) -> int:
        """An hour at most."""
        return min(asked_ms, 3_600_000)


class AgedStarves(_StepBug):
    """Whatever step is asked for, priority alone counts."""

    def step_ms(self, asked_ms: int) -> int:
        """Strict, always."""
        del asked_ms
        return STRICT_STEP_MS


class StepForNewTasksOnly(DocumentBug):
    """Tasks that wait when the step changes stay where they are."""

    kinds = frozenset({QUEUE})

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._steps: dict[str, int] = {}

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """A new step is kept for later."""
        current = await documents.one(self.inner, QUEUE, write.name)
        step_ms = queue_settings_of(current).step_ms
        asked_ms = _settings(write).step_ms
        if asked_ms == step_ms:
            return await self.inner.put(write)
        self._steps[write.name] = asked_ms
        return await self.inner.put(_with_step(write, step_ms))

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Now it is later."""
        while self._steps:
            await documents.set_step(self.inner, *self._steps.popitem())
        return await self.inner.enqueue(tasks, map_version=map_version)


class StepOfAllQueues(DocumentBug):
    """A step that is set for one queue holds in all."""

    kinds = frozenset({QUEUE})

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._queues: set[str] = set()

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Queues noted down."""
        self._queues |= {task.queue for task in tasks}
        return await self.inner.enqueue(tasks, map_version=map_version)

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Everywhere."""
        result = await self.inner.put(write)
        for queue in self._queues - {write.name}:
            await documents.set_step(self.inner, queue, _settings(write).step_ms)
        return result


class StepForgottenAfterReopen(DocumentBug):
    """Steps last until the store is closed."""

    kinds = frozenset({QUEUE})

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._queues: set[str] = set()

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """For now."""
        self._queues.add(write.name)
        return await self.inner.put(write)

    async def close(self) -> None:
        """As if nothing had been set."""
        for queue in self._queues:
            await documents.set_step(self.inner, queue, AGED_STEP_MS)
        await self.inner.close()


class ReadyWhenRecorded(BrokenStore):
    """A delay that was asked for counts as time that a task has waited."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """As if every task had been ready at once."""
        answer = await self.inner.reserve(request, settle)
        tasks = [replace(task, ready_at_ms=task.created_at_ms) for task in answer.tasks]
        return replace(answer, tasks=tasks)


class ClaimedWhenTold(BrokenStore):
    """A worker that asks again is told that its claim is as young as the answer."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """By the time of the call."""
        answer = await self.inner.reserve(request, settle)
        now_ms = self.clock.now_ms()
        tasks = [replace(task, claimed_at_ms=now_ms) for task in answer.tasks]
        return replace(answer, tasks=tasks)
