"""`app.schedules`: schedules looked at, made and changed at run time."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from holdfast.admin import schedules as actions
from holdfast.core.arguments import result_decoder
from holdfast.core.ids import IdSource
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.producer.enqueue import Prepared
from holdfast.producer.handle import TaskHandle
from holdfast.producer.portal import StoreLink
from holdfast.producer.schedules import TimingOptions, call_of, check_known, edited_call, protected_call
from holdfast.producer.task_type import TaskType

#: What each occurrence enqueues.
Scheduled = Prepared[Any] | TaskType[..., Any]


class Schedules:
    """The schedules of a store, those that the code declares and those that are made here."""

    def __init__(self, link: StoreLink, ids: IdSource, task_types: Mapping[str, TaskType[..., Any]]) -> None:
        self._link = link
        self._ids = ids
        self._task_types = task_types

    async def aput(self, name: str, call: Scheduled, **timing: Unpack[TimingOptions]) -> Schedule:
        """Makes a schedule, or gives one that was made so before this call and timing; paused or not as before."""
        when = changed_timing(Timing(), **timing)
        what = protected_call(self._call(call), self._link.crypto, name, when)
        return await actions.put(self._link.store(), name, when, what)

    async def aedit(
        self,
        name: str,
        call: Scheduled | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        **timing: Unpack[TimingOptions],
    ) -> Schedule:
        """Changes the given parts of a schedule, and nothing else; if its times change, so does its next occurrence."""
        what = None if call is None else self._call(call)

        def change(schedule: Schedule) -> tuple[Timing, ScheduledCall]:
            when = changed_timing(schedule.timing, **timing)
            return when, edited_call(schedule, what, when, self._link.crypto, queue=queue, priority=priority)

        return await actions.edit(self._link.store(), name, change)

    async def aget(self, name: str) -> Schedule:
        """The schedule of this name, or `UnknownSchedule`."""
        return await actions.one(self._link.store(), name)

    async def alist(self) -> Sequence[Schedule]:
        """All schedules, ordered by their next occurrence; those without one come last."""
        return await actions.listed(self._link.store())

    async def anext(self, name: str, count: int = 5) -> Sequence[datetime]:
        """The next occurrences of the schedule, in its time zone; for a paused schedule, those that it would have."""
        return await actions.upcoming(self._link.store(), name, count)

    async def apause(self, name: str) -> Schedule:
        """Pauses the schedule until it is resumed; a task that runs goes on. A deploy does not end the pause."""
        return await actions.pause(self._link.store(), name)

    async def aresume(self, name: str) -> Schedule:
        """Resumes the schedule from now on; occurrences that fell into the pause are not made up for."""
        return await actions.resume(self._link.store(), name)

    async def arun_now(self, name: str) -> TaskHandle[Any]:
        """Enqueues a task in addition to the occurrences; `Refused` if that would be a forbidden overlap."""
        new_id = functools.cache(self._ids.task_id)
        task_id = await actions.run_now(self._link.store(), name, new_id, crypto=self._link.crypto)
        return TaskHandle(self._link, task_id, result_decoder(Any, f"task {task_id}"))

    async def aremove(self, name: str) -> None:
        """Deletes a schedule; the tasks that it made stay. One that the code declares comes back with a worker."""
        await actions.remove(self._link.store(), name)

    # -- the same for sync callers --------------------------------------------------------------------------

    def put(self, name: str, call: Scheduled, **timing: Unpack[TimingOptions]) -> Schedule:
        """Makes a schedule, or gives one that was made so before this call and timing; paused or not as before."""
        return self._link.run(self.aput(name, call, **timing))

    def edit(
        self,
        name: str,
        call: Scheduled | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        **timing: Unpack[TimingOptions],
    ) -> Schedule:
        """Changes the given parts of a schedule, and nothing else; if its times change, so does its next occurrence."""
        return self._link.run(self.aedit(name, call, queue=queue, priority=priority, **timing))

    def get(self, name: str) -> Schedule:
        """The schedule of this name, or `UnknownSchedule`."""
        return self._link.run(self.aget(name))

    def list(self) -> Sequence[Schedule]:
        """All schedules, ordered by their next occurrence; those without one come last."""
        return self._link.run(self.alist())

    def next(self, name: str, count: int = 5) -> Sequence[datetime]:
        """The next occurrences of the schedule, in its time zone; for a paused schedule, those that it would have."""
        return self._link.run(self.anext(name, count))

    def pause(self, name: str) -> Schedule:
        """Pauses the schedule until it is resumed; a task that runs goes on. A deploy does not end the pause."""
        return self._link.run(self.apause(name))

    def resume(self, name: str) -> Schedule:
        """Resumes the schedule from now on; occurrences that fell into the pause are not made up for."""
        return self._link.run(self.aresume(name))

    def run_now(self, name: str) -> TaskHandle[Any]:
        """Enqueues a task in addition to the occurrences; `Refused` if that would be a forbidden overlap."""
        return self._link.run(self.arun_now(name))

    def remove(self, name: str) -> None:
        """Deletes a schedule; the tasks that it made stay. One that the code declares comes back with a worker."""
        self._link.run(self.aremove(name))

    def _call(self, call: Scheduled) -> ScheduledCall:
        made = call_of(call)
        check_known(made.type, self._task_types)
        return made
