"""Ticks: a schedule is replaced together with the tasks of its tick, all or nothing, each tick once."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.policy import RunPolicy
from holdfast.core.schedule import Call
from holdfast.core.task import NewTask, State
from holdfast.errors import StaleEpoch
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect
from holdfast.testing.kit import KEEP_NOTHING, Kit, ack, every_minute, next_version

group = Group("ticks")


def _tick(kit: Kit, request_id: str = "nightly@1", **fields: Any) -> NewTask:
    return kit.new_task(request_id=request_id, **fields)


async def _ready(kit: Kit, queue: str = "default") -> int:
    return (await kit.counts(queue)).states.get(State.READY, 0)


@group.case
async def tasks_are_recorded_with_it(kit: Kit) -> None:
    """The tasks of a tick are recorded like enqueued ones: ready, or scheduled for their time."""
    now = _tick(kit, "nightly@1", payload=b'{"n":1}', headers={"a": "b"}, priority=3)
    later = _tick(kit, "nightly@2", delay_ms=500)
    expect("put", await kit.store.put_schedule("nightly", every_minute(), 0, [now, later]), True)
    record = await kit.record(now.task_id)
    kept = (record.state, record.payload, record.headers, record.priority, record.policy, record.request_id)
    expect("task", kept, (State.READY, b'{"n":1}', {"a": "b"}, 3, now.policy, "nightly@1"))
    expect("claimed", (await kit.reserve_one()).task_id, now.task_id)
    record = await kit.record(later.task_id)
    expect("delayed one", (record.state, record.run_at_ms), (State.SCHEDULED, kit.clock.now_ms() + 500))


@group.case
async def deadlines_count_for_its_tasks(kit: Kit) -> None:
    """The task of a tick can be overdue like any other."""
    task = _tick(kit, policy=RunPolicy(expires_ms=1_000))
    await kit.store.put_schedule("nightly", every_minute(), 0, [task])
    kit.clock.advance(1_000)
    expect("overdue", await kit.store.overdue(), [task.task_id])


@group.case
async def refused_put_records_no_task(kit: Kit) -> None:
    """Whoever comes too late with a tick records nothing of it."""
    await kit.store.put_schedule("nightly", every_minute(), 0)
    await kit.store.put_schedule("nightly", every_minute(version=2), 1)
    task = _tick(kit)
    late = every_minute(version=2, source="too late")
    expect("put", await kit.store.put_schedule("nightly", late, 1, [task]), False)
    expect("new one", await kit.store.put_schedule("nightly", every_minute(source="x"), 0, [task]), False)
    expect("task", await kit.store.get([task.task_id]), [None])
    expect("queues", await kit.store.counts(), [])


@group.case
async def repeated_tick_makes_no_second_task(kit: Kit) -> None:
    """The same call again records nothing, not even when the task has come and gone meanwhile."""
    task = _tick(kit)
    for _ in range(2):
        expect("put", await kit.store.put_schedule("nightly", every_minute(), 0, [task]), True)
    expect("ready tasks", await _ready(kit), 1)
    await kit.apply(ack(await kit.reserve_one()))
    await kit.prune(KEEP_NOTHING)
    expect("put after its end", await kit.store.put_schedule("nightly", every_minute(), 0, [task]), True)
    expect("task", await kit.store.get([task.task_id]), [None])


@group.case
async def known_task_is_not_made_twice(kit: Kit) -> None:
    """A tick whose task_id or request_id is known takes place, and makes no second task."""
    same_id, same_request = _tick(kit, "nightly@1"), _tick(kit, "nightly@2")
    await kit.store.enqueue([same_id, same_request])
    again = [same_id, _tick(kit, "nightly@2"), _tick(kit, "nightly@2", payload=b'{"other":true}'), _tick(kit, "new")]
    expect("put", await kit.store.put_schedule("nightly", every_minute(), 0, again), True)
    expect("schedule", await kit.store.schedule("nightly"), every_minute())
    expect("ready tasks", await _ready(kit), 3)


@group.case
async def tick_after_tick(kit: Kit) -> None:
    """Each version makes its own tick; a removal may record tasks too."""
    schedule = every_minute(next_at_ms=kit.clock.now_ms())
    await kit.store.put_schedule("nightly", schedule, 0)
    for number in range(5):
        new = next_version(schedule, next_at_ms=kit.clock.now_ms() + 1_000)
        tasks = [_tick(kit, f"nightly@{number}")]
        expect("tick", await kit.store.put_schedule("nightly", new, schedule.version, tasks), True)
        schedule = new
        kit.clock.advance(1_000)
    expect("last", await kit.store.put_schedule("nightly", None, schedule.version, [_tick(kit, "last")]), True)
    expect("ready tasks", await _ready(kit), 6)


@group.case
async def old_epoch_ticks_nothing(kit: Kit) -> None:
    """A tick by a former owner of the upkeep is refused with `StaleEpoch`, with its task; by the owner it is made."""
    await kit.store.put_schedule("nightly", every_minute(), 0)
    old = await kit.upkeep_epoch()
    current = await kit.new_owner_epoch()
    task, new = _tick(kit), every_minute(version=2)
    for epoch in (old, current + 1):
        try:
            await kit.store.put_schedule("nightly", new, 1, [task], epoch)
        except StaleEpoch:
            continue
        raise AssertionError(f"epoch {epoch} is refused while {current} is the owner's")
    expect("schedule", await kit.store.schedule("nightly"), every_minute())
    expect("task", await kit.store.get([task.task_id]), [None])
    expect("the owner's", await kit.store.put_schedule("nightly", new, 1, [task], current), True)
    expect("anybody's without an epoch", await kit.store.put_schedule("nightly", None, 2), True)
    expect("ready tasks", await _ready(kit), 1)


@group.case
async def concurrent_ticks_happen_once(kit: Kit) -> None:
    """Of ten that make the same tick at once one wins, and there is one task; tick after tick."""
    await _one_wins(kit, 5, 10)


@group.shared
async def concurrent_ticks_through_two_stores_happen_once(kit: Kit) -> None:
    """Of ten that make the same tick at once through two opened stores one wins, and there is one task."""
    await kit.another()
    await _one_wins(kit, 5, 10)


async def _one_wins(kit: Kit, ticks: int, putters: int) -> None:
    stores = kit.opened
    await kit.store.put_schedule("nightly", every_minute(), 0)
    for version in range(1, ticks + 1):
        # Each has a task of its own, under a request_id of its own: only the version keeps them apart.
        puts = [
            stores[n % len(stores)].put_schedule(
                "nightly", every_minute(version=version + 1, source=f"{n}"), version, [_tick(kit, f"{version}@{n}")]
            )
            for n in range(putters)
        ]
        expect(f"winners of tick {version}", sum(await asyncio.gather(*puts)), 1)
    expect("ready tasks", await _ready(kit), ticks)
    schedule = await kit.store.schedule("nightly")
    expect("version", schedule and schedule.version, ticks + 1)


@group.case
async def call_may_move_to_another_queue(kit: Kit) -> None:
    """A schedule whose call goes to another queue is one schedule still, and ticks there."""
    schedule = every_minute(queue="q-0", next_at_ms=kit.clock.now_ms())
    await kit.store.put_schedule("nightly", schedule, 0)
    for number in range(1, 6):
        queue = f"q-{number}"
        schedule = next_version(schedule, call=Call(type="kit.work", queue=queue))
        for _ in range(2):
            expect(f"put to {queue}", await kit.store.put_schedule("nightly", schedule, number), True)
        expect("schedule", await kit.store.schedule("nightly"), schedule)
        expect("all", (await kit.store.schedules()).schedules, [schedule])
        expect("old version", await kit.store.put_schedule("nightly", every_minute(version=number), number - 1), False)
    schedule = next_version(schedule)
    tasks = [_tick(kit, queue="q-5")]
    expect("tick", await kit.store.put_schedule("nightly", schedule, schedule.version - 1, tasks), True)
    expect("ready tasks", await _ready(kit, "q-5"), 1)
    expect("removal", await kit.store.put_schedule("nightly", None, schedule.version), True)
    expect("all", (await kit.store.schedules()).schedules, [])
