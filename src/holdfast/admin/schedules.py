"""Schedules: looked at, made and changed at run time, and brought in line with what an app's code declares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from holdfast.core.names import check_schedule
from holdfast.core.schedule import decide as rescheduling
from holdfast.core.schedule.decide import watched_task
from holdfast.core.schedule.occurrences import shown_time, task_on_demand
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing, is_bound
from holdfast.core.schedule.timing import occurrences_of, zone
from holdfast.core.task import FINAL_STATES, NewTask
from holdfast.errors import BadOption, BadUrl, NotAllowed, Refused, StoreError, UnknownSchedule
from holdfast.security.crypto import PayloadCrypto
from holdfast.stores import documents
from holdfast.stores.contract import Store

#: More schedules than any app has.
MAX_SCHEDULES = 100_000
MAX_UPCOMING = 1_000
_PAUSE_AFTER_ERROR_SECONDS = 5.0
log = logging.getLogger(__name__)


# -- looking -------------------------------------------------------------------------------------------------


async def listed(store: Store) -> list[Schedule]:
    """All schedules, ordered by their next occurrence; those without one come last."""
    return (await documents.schedules(store, None, MAX_SCHEDULES)).schedules


async def one(store: Store, name: str) -> Schedule:
    """The schedule of this name, or `UnknownSchedule`."""
    found = await documents.schedule(store, check_schedule(name))
    if found is None:
        raise UnknownSchedule(f"no schedule {name} in {store.url}")
    return found


async def upcoming(store: Store, name: str, count: int = 5) -> list[datetime]:
    """The next occurrences of the schedule, in its time zone; for a paused schedule, those that it would have."""
    if not isinstance(count, int) or not 1 <= count <= MAX_UPCOMING:
        raise BadOption(f"{count!r} next times are refused: ask for 1 to {MAX_UPCOMING:,}")
    schedule = await one(store, name)
    occurrences, on_wall = occurrences_of(schedule.timing), zone(schedule.timing.timezone)
    first_ms = schedule.next_at_ms
    if first_ms is None:
        found = occurrences.upcoming(await _now_ms(store), count)
    else:
        found = [first_ms, *occurrences.upcoming(first_ms, count - 1)]
    return [datetime.fromtimestamp(each / 1000, UTC).astimezone(on_wall) for each in found]


# -- acting --------------------------------------------------------------------------------------------------


async def put(store: Store, name: str, timing: Timing, call: ScheduledCall) -> Schedule:
    """Makes a schedule, or gives one that was made at run time this definition; paused or not as before."""
    while True:
        before, now_ms = await documents.schedule(store, check_schedule(name)), await _now_ms(store)
        if before is not None and before.source:
            raise Refused(f"schedule {name} is declared in {before.source}: edit it, or change it there")
        new = _defined(before, Schedule(name=name, timing=timing, call=call), now_ms)
        if new is before or await documents.put_schedule(store, name, new, before.version if before else 0):
            return new


async def edit(store: Store, name: str, change: Callable[[Schedule], tuple[Timing, ScheduledCall]]) -> Schedule:
    """Gives a schedule another definition, made from the one that it has."""
    return await _change(store, name, lambda before, now_ms: rescheduling.edited(before, *change(before), now_ms))


async def pause(store: Store, name: str) -> Schedule:
    """Pauses the schedule: it has no occurrences until it is resumed. A task that runs goes on."""
    return await _change(store, name, lambda before, _: rescheduling.paused(before))


async def resume(store: Store, name: str) -> Schedule:
    """Resumes the schedule from now on."""
    return await _change(store, name, rescheduling.resumed)


async def remove(store: Store, name: str) -> Schedule:
    """Deletes a schedule; the tasks that it made stay."""
    while True:
        before = await one(store, name)
        if await documents.put_schedule(store, name, None, before.version):
            return before


async def run_now(
    store: Store,
    name: str,
    task_id: Callable[[int], str],
    trace: Mapping[str, str] | None = None,
    crypto: PayloadCrypto | None = None,
) -> str:
    """Enqueues a task in addition to the occurrences, returns its id; `Refused` if that would be a forbidden overlap.

    A signed schedule needs the keys for it: a worker could not tell a task without an occurrence from a copy.

    `task_id` makes the id for a partition, the same each time: whatever is repeated, there is one task.
    """
    place = await store.placement()
    while True:
        before = await one(store, name)
        new = _on_demand(before, task_id(place(before.call.queue, name)), trace, crypto)
        if before.last_task_id == new.task_id:
            return new.task_id
        await _refuse_overlap(store, before)
        if await documents.put_schedule(store, name, rescheduling.ran(before, new.task_id), before.version, [new]):
            return new.task_id


async def declare(store: Store, schedules: Sequence[Schedule], source: str) -> None:
    """Brings the schedules of this source in line with what its code declares.

    What the code says as before is left alone, whatever was changed at run time; what it says no more is removed.
    Schedules of other sources, and those made at run time, are never touched.
    """
    for schedule in schedules:
        await _declare_one(store, replace(schedule, source=source))
    names = {schedule.name for schedule in schedules}
    for found in await listed(store):
        if found.source == source and found.name not in names:
            await _withdraw(store, found, source)


async def keep_declared(store: Store, schedules: Sequence[Schedule], source: str) -> None:
    """As `declare`, again until it has come through; left out by a worker whose token does not let it."""
    while True:
        try:
            return await declare(store, schedules, source)
        except NotAllowed as error:
            if schedules:
                log.warning("the schedules of %s are left as they are: %s", source, error)
            return None
        except (StoreError, BadUrl) as error:  # the store has answered this process: no URL is wrong now
            log.warning("the schedules of %s are not declared yet: %s", source, error)
            await asyncio.sleep(_PAUSE_AFTER_ERROR_SECONDS)


async def _declare_one(store: Store, schedule: Schedule) -> None:
    name = schedule.name
    schedule = replace(schedule, declared=rescheduling.digest(schedule.timing, schedule.call))
    while True:
        before, now_ms = await documents.schedule(store, name), await _now_ms(store)
        if before is not None and before.source != schedule.source:
            whose = f"declared in {before.source}" if before.source else "made at run time"
            log.warning("schedule %s of %s is left out: one of that name is %s", name, schedule.source, whose)
            return
        if before is not None and before.declared == schedule.declared:
            return
        new = _defined(before, schedule, now_ms)
        if await documents.put_schedule(store, name, new, before.version if before else 0):
            log.info("schedule %s is %s: %s", name, "changed" if before else "new", _next(new))
            return


async def _withdraw(store: Store, found: Schedule | None, source: str) -> None:
    while found is not None and found.source == source:
        if await documents.put_schedule(store, found.name, None, found.version):
            log.info("schedule %s is removed: %s no longer declares it", found.name, source)
            return
        found = await documents.schedule(store, found.name)


def _defined(before: Schedule | None, wanted: Schedule, now_ms: int) -> Schedule:
    if before is None:
        return rescheduling.begun(wanted, now_ms)
    return rescheduling.edited(before, wanted.timing, wanted.call, now_ms, wanted.declared)


async def _change(store: Store, name: str, change: Callable[[Schedule, int], Schedule]) -> Schedule:
    """Changes the current version of the schedule; tries again if another client has changed it meanwhile."""
    while True:
        before, now_ms = await one(store, name), await _now_ms(store)
        after = change(before, now_ms)
        if after is before or await documents.put_schedule(store, name, after, before.version):
            return after


def _on_demand(
    schedule: Schedule, task_id: str, trace: Mapping[str, str] | None, crypto: PayloadCrypto | None
) -> NewTask:
    task = task_on_demand(schedule, task_id, trace)
    if crypto is not None:
        return crypto.on_demand(schedule, task)
    if is_bound(schedule.call):
        raise Refused(
            f"schedule {schedule.name} is signed: run it by the app that has the keys (holdfast schedules run "
            f"{schedule.name} --app MODULE:APP, or app.schedules.run_now)"
        )
    return task


async def _refuse_overlap(store: Store, schedule: Schedule) -> None:
    watched = watched_task(schedule)
    (task,) = await store.get([watched]) if watched else [None]
    if task is not None and task.state not in FINAL_STATES:
        raise Refused(f"schedule {schedule.name} does not overlap, and its task {task.task_id} is {task.state}")


async def _now_ms(store: Store) -> int:
    return (await documents.schedules(store, 0, 1)).now_ms


def _next(schedule: Schedule) -> str:
    if schedule.next_at_ms is None:
        return "paused" if schedule.paused else "no next occurrence"
    return f"next occurrence {shown_time(schedule.next_at_ms)}"
