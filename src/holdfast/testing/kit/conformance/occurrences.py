"""Occurrences: a schedule is replaced together with the tasks of one, all or nothing, each occurrence once."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import ScheduledCall
from holdfast.core.task import NewTask, State
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import KEEP_NOTHING, Kit, ack, every_minute, next_version

group = Group("occurrences")


def _task_of(kit: Kit, request_id: str = "nightly@1", **fields: Any) -> NewTask:
    return kit.new_task(request_id=request_id, **fields)


async def _ready(kit: Kit, queue: str = "default") -> int:
    return (await kit.counts(queue)).states.get(State.READY, 0)


@group.case
async def tasks_are_recorded_with_it(kit: Kit) -> None:
    """The tasks of an occurrence are enqueued like enqueued ones: ready, or scheduled for their time."""
    now = _task_of(kit, "nightly@1", payload=b'{"n":1}', headers={"a": "b"}, priority=3)
    later = _task_of(kit, "nightly@2", delay_ms=500)
    expect("put", await documents.put_schedule(kit.store, "nightly", every_minute(), 0, [now, later]), True)
    record = await kit.record(now.task_id)
    kept = (record.state, record.payload, record.headers, record.priority, record.policy, record.request_id)
    expect("task", kept, (State.READY, b'{"n":1}', {"a": "b"}, 3, now.policy, "nightly@1"))
    expect("claimed", (await kit.reserve_one()).task_id, now.task_id)
    record = await kit.record(later.task_id)
    expect("delayed one", (record.state, record.run_at_ms), (State.SCHEDULED, kit.clock.now_ms() + 500))


@group.case
async def deadlines_count_for_its_tasks(kit: Kit) -> None:
    """The task of an occurrence can miss its deadline to start like any other."""
    task = _task_of(kit, policy=RunPolicy(expires_ms=1_000))
    await documents.put_schedule(kit.store, "nightly", every_minute(), 0, [task])
    kit.clock.advance(1_000)
    expect("unstarted", await kit.unstarted(), [task.task_id])


@group.case
async def refused_put_records_no_task(kit: Kit) -> None:
    """A caller that comes too late with an occurrence enqueues nothing of it."""
    await documents.put_schedule(kit.store, "nightly", every_minute(), 0)
    await documents.put_schedule(kit.store, "nightly", every_minute(version=2), 1)
    task = _task_of(kit)
    late = every_minute(version=2, source="too late")
    expect("put", await documents.put_schedule(kit.store, "nightly", late, 1, [task]), False)
    expect("new one", await documents.put_schedule(kit.store, "nightly", every_minute(source="x"), 0, [task]), False)
    expect("task", await kit.store.get([task.task_id]), [None])
    expect("queues", await kit.store.counts(), [])


@group.case
async def repeated_occurrence_makes_no_second_task(kit: Kit) -> None:
    """The same call again records nothing, not even when the task has come and gone meanwhile."""
    task = _task_of(kit)
    for _ in range(2):
        expect("put", await documents.put_schedule(kit.store, "nightly", every_minute(), 0, [task]), True)
    expect("ready tasks", await _ready(kit), 1)
    await kit.apply(ack(await kit.reserve_one()))
    await kit.prune(KEEP_NOTHING)
    expect("put after its end", await documents.put_schedule(kit.store, "nightly", every_minute(), 0, [task]), True)
    expect("task", await kit.store.get([task.task_id]), [None])


@group.case
async def known_task_is_not_made_twice(kit: Kit) -> None:
    """An occurrence whose task_id or request_id is known takes place, and makes no second task."""
    same_id, same_request = _task_of(kit, "nightly@1"), _task_of(kit, "nightly@2")
    await kit.store.enqueue([same_id, same_request])
    again = [
        same_id,
        _task_of(kit, "nightly@2"),
        _task_of(kit, "nightly@2", payload=b'{"other":true}'),
        _task_of(kit, "new"),
    ]
    expect("put", await documents.put_schedule(kit.store, "nightly", every_minute(), 0, again), True)
    expect("schedule", await documents.schedule(kit.store, "nightly"), every_minute())
    expect("ready tasks", await _ready(kit), 3)


@group.case
async def one_occurrence_after_the_other(kit: Kit) -> None:
    """Each version fires its own occurrence; a removal may enqueue tasks too."""
    schedule = every_minute(next_at_ms=kit.clock.now_ms())
    await documents.put_schedule(kit.store, "nightly", schedule, 0)
    for number in range(5):
        new = next_version(schedule, next_at_ms=kit.clock.now_ms() + 1_000)
        tasks = [_task_of(kit, f"nightly@{number}")]
        expect("occurrence", await documents.put_schedule(kit.store, "nightly", new, schedule.version, tasks), True)
        schedule = new
        kit.clock.advance(1_000)
    expect(
        "last",
        await documents.put_schedule(kit.store, "nightly", None, schedule.version, [_task_of(kit, "last")]),
        True,
    )
    expect("ready tasks", await _ready(kit), 6)


@group.case
async def old_epoch_fires_nothing(kit: Kit) -> None:
    """An occurrence by a former leader is refused with `StaleEpoch`, with its task; by the leader it is fired."""
    await documents.put_schedule(kit.store, "nightly", every_minute(), 0)
    old = await kit.leader_epoch()
    current = await kit.new_leader_epoch()
    task, new = _task_of(kit), every_minute(version=2)
    for epoch in (old, current + 1):
        try:
            await documents.put_schedule(kit.store, "nightly", new, 1, [task], epoch)
        except StaleEpoch:
            continue
        raise AssertionError(f"epoch {epoch} is refused while {current} is the leader's")
    expect("schedule", await documents.schedule(kit.store, "nightly"), every_minute())
    expect("task", await kit.store.get([task.task_id]), [None])
    expect("the leader's", await documents.put_schedule(kit.store, "nightly", new, 1, [task], current), True)
    expect("without an epoch", await documents.put_schedule(kit.store, "nightly", None, 2), True)
    expect("ready tasks", await _ready(kit), 1)


@group.case
async def concurrent_occurrences_fire_once(kit: Kit) -> None:
    """Of ten that fire the same occurrence at once one wins, and there is one task; time after time."""
    await _one_wins(kit, 5, 10)


@group.shared
async def concurrent_occurrences_through_two_stores_fire_once(kit: Kit) -> None:
    """Of ten that fire the same occurrence at once through two opened stores one wins."""
    await kit.another()
    await _one_wins(kit, 5, 10)


async def _one_wins(kit: Kit, occurrences: int, putters: int) -> None:
    stores = kit.opened
    await documents.put_schedule(kit.store, "nightly", every_minute(), 0)
    for version in range(1, occurrences + 1):
        # Each has a task of its own, under a request_id of its own: only the version keeps them apart.
        puts = [
            documents.put_schedule(
                stores[n % len(stores)],
                "nightly",
                every_minute(version=version + 1, source=f"{n}"),
                version,
                [_task_of(kit, f"{version}@{n}")],
            )
            for n in range(putters)
        ]
        expect(f"winners of occurrence {version}", sum(await asyncio.gather(*puts)), 1)
    expect("ready tasks", await _ready(kit), occurrences)
    schedule = await documents.schedule(kit.store, "nightly")
    expect("version", schedule and schedule.version, occurrences + 1)


@group.case
async def call_may_move_to_another_queue(kit: Kit) -> None:
    """A schedule whose call goes to another queue is one schedule still, and fires there."""
    schedule = every_minute(queue="q-0", next_at_ms=kit.clock.now_ms())
    await documents.put_schedule(kit.store, "nightly", schedule, 0)
    for number in range(1, 6):
        queue = f"q-{number}"
        schedule = next_version(schedule, call=ScheduledCall(type="kit.work", queue=queue))
        for _ in range(2):
            expect(f"put to {queue}", await documents.put_schedule(kit.store, "nightly", schedule, number), True)
        expect("schedule", await documents.schedule(kit.store, "nightly"), schedule)
        expect("all", (await documents.schedules(kit.store)).schedules, [schedule])
        expect(
            "old version",
            await documents.put_schedule(kit.store, "nightly", every_minute(version=number), number - 1),
            False,
        )
    schedule = next_version(schedule)
    tasks = [_task_of(kit, queue="q-5")]
    expect(
        "occurrence", await documents.put_schedule(kit.store, "nightly", schedule, schedule.version - 1, tasks), True
    )
    expect("ready tasks", await _ready(kit, "q-5"), 1)
    expect("removal", await documents.put_schedule(kit.store, "nightly", None, schedule.version), True)
    expect("all", (await documents.schedules(kit.store)).schedules, [])
