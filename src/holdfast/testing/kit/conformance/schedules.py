"""Schedules: replaced by version, and found by the time of their next occurrence."""

from __future__ import annotations

import asyncio

from holdfast.core import lifecycle
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Missed, Overlap, Schedule, ScheduledCall, Timing
from holdfast.stores import documents
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import KEEP_NOTHING, Kit, every_minute, next_version

group = Group("schedules")


async def _put(kit: Kit, *schedules: Schedule) -> None:
    for schedule in schedules:
        expect(f"{schedule.name} is new", await documents.put_schedule(kit.store, schedule.name, schedule, 0), True)


async def _names(kit: Kit, due_within_ms: int | None = None, limit: int = 1_000) -> list[str]:
    return [schedule.name for schedule in (await documents.schedules(kit.store, due_within_ms, limit)).schedules]


# -- the record ----------------------------------------------------------------------------------------------


@group.case
async def kept_exactly(kit: Kit) -> None:
    """A schedule comes back as it was put, one by one and in the list."""
    full = Schedule(
        name="report:mail",
        timing=Timing(
            cron="*/5 3 * * MON-FRI",
            timezone="Europe/Berlin",
            jitter_ms=30_000,
            missed=Missed.ALL,
            window_ms=7_200_000,
            overlap=Overlap.QUEUE,
        ),
        call=ScheduledCall(
            type="mail.report",
            queue="mail",
            payload='{"to":"zoë"}'.encode(),
            headers={"trace": "00-ab", "ключ": "значение"},
            priority=-7,
            policy=RunPolicy(max_attempts=7, jitter=0.25, give_up_on=("a.B",), timeout_ms=5, expires_ms=99),
        ),
        source="shop.tasks:app",
        next_at_ms=kit.clock.now_ms() + 1,
        last_at_ms=kit.clock.now_ms() - 1,
        last_task_id=kit.new_task().task_id,
        version=1,
    )
    plain = every_minute(paused=True)
    await _put(kit, full, plain)
    expect("one", await documents.schedule(kit.store, "report:mail"), full)
    expect("another", await documents.schedule(kit.store, "nightly"), plain)
    expect("all", (await documents.schedules(kit.store)).schedules, [full, plain])


@group.case
async def unknown_name_is_none(kit: Kit) -> None:
    """A name that no schedule has is answered with None, and a new store lists none."""
    expect("schedule", await documents.schedule(kit.store, "nightly"), None)
    listed = await documents.schedules(kit.store)
    expect("list", (listed.now_ms, listed.schedules), (kit.clock.now_ms(), []))


@group.case
async def replaced_by_the_next_version(kit: Kit) -> None:
    """A caller that names the version that is there replaces the schedule."""
    first = every_minute()
    await _put(kit, first)
    second = next_version(first, paused=True, call=ScheduledCall(type="kit.other"))
    expect("put", await documents.put_schedule(kit.store, "nightly", second, 1), True)
    expect("schedule", await documents.schedule(kit.store, "nightly"), second)
    third = next_version(second, paused=False)
    expect("put again", await documents.put_schedule(kit.store, "nightly", third, 2), True)
    expect("schedule", await documents.schedule(kit.store, "nightly"), third)
    expect("names", await _names(kit), ["nightly"])


@group.case
async def other_versions_are_refused(kit: Kit) -> None:
    """A caller that names another version than the one that is there changes nothing, and is told so."""
    second = every_minute(version=2)
    await _put(kit, every_minute())
    await documents.put_schedule(kit.store, "nightly", second, 1)
    for expected in (0, 1, 3):
        wrong = every_minute(source="too late", version=expected + 1)
        expect(f"put after {expected}", await documents.put_schedule(kit.store, "nightly", wrong, expected), False)
    for expected in (0, 1, 3):
        expect(f"removal of {expected}", await documents.put_schedule(kit.store, "nightly", None, expected), False)
    expect("schedule", await documents.schedule(kit.store, "nightly"), second)


@group.case
async def no_version_of_what_is_not_there(kit: Kit) -> None:
    """A schedule that does not exist, or not any more, has no version but 0."""
    expect("put", await documents.put_schedule(kit.store, "nightly", every_minute(version=4), 3), False)
    expect("schedule", await documents.schedule(kit.store, "nightly"), None)


@group.case
async def removed_by_its_version(kit: Kit) -> None:
    """A schedule is removed by a caller that names its version, and its name is free again."""
    await _put(kit, every_minute(next_at_ms=kit.clock.now_ms()), every_minute("other"))
    expect("removal", await documents.put_schedule(kit.store, "nightly", None, 1), True)
    expect("schedule", await documents.schedule(kit.store, "nightly"), None)
    expect("due", await _names(kit, 0), [])
    expect("names", await _names(kit), ["other"])
    await _put(kit, every_minute(source="anew"))
    expect("schedule", (await documents.schedule(kit.store, "nightly")), every_minute(source="anew"))


@group.case
async def repeats_are_successes(kit: Kit) -> None:
    """The same call again is a success and does nothing: a new schedule, a replaced one, a removed one."""
    first = every_minute()
    second = next_version(first)
    for new, expected in ((first, 0), (second, 1), (None, 2)):
        for _ in range(2):
            expect(f"put after {expected}", await documents.put_schedule(kit.store, "nightly", new, expected), True)
            expect("schedule", await documents.schedule(kit.store, "nightly"), new)


@group.case
async def names_are_apart(kit: Kit) -> None:
    """What happens to one schedule does not touch another, whatever their names have in common."""
    await _put(kit, every_minute("a"), every_minute("a.b"), every_minute("A"))
    await documents.put_schedule(kit.store, "a", None, 1)
    await documents.put_schedule(kit.store, "A", every_minute("A", source="new", version=2), 1)
    expect("a.b", await documents.schedule(kit.store, "a.b"), every_minute("a.b"))
    expect("names", sorted(await _names(kit)), ["A", "a.b"])


# -- when they are due ---------------------------------------------------------------------------------------


@group.case
async def found_when_due(kit: Kit) -> None:
    """A schedule is due at the millisecond of its next occurrence by the store's clock, or before it as asked for."""
    await _put(kit, every_minute(next_at_ms=kit.clock.now_ms() + 1_000))
    expect("a second early", await _names(kit, 0), [])
    expect("within less", await _names(kit, 999), [])
    expect("within a second", await _names(kit, 1_000), ["nightly"])
    kit.clock.advance(1_000)
    due = await documents.schedules(kit.store, 0)
    expect("due", [schedule.name for schedule in due.schedules], ["nightly"])
    expect("now_ms", due.now_ms, kit.clock.now_ms())
    kit.clock.advance(3_600_000)
    expect("an hour late", await _names(kit, 0), ["nightly"])


@group.case
async def soonest_first(kit: Kit) -> None:
    """Schedules come by their next occurrence, those without one last, and no more than were asked for."""
    now_ms = kit.clock.now_ms()
    await _put(
        kit,
        every_minute("none", paused=True),
        every_minute("a-third", next_at_ms=now_ms + 300, queue="c"),
        every_minute("c-first", next_at_ms=now_ms - 100, queue="a"),
        every_minute("b-second", next_at_ms=now_ms + 200, queue="b"),
    )
    expect("all", await _names(kit), ["c-first", "b-second", "a-third", "none"])
    expect("number of two of all", len(await _names(kit, limit=2)), 2)
    expect("due", await _names(kit, 250), ["c-first", "b-second"])
    expect("all that are due", await _names(kit, 1_000), ["c-first", "b-second", "a-third"])
    expect("two of the due", await _names(kit, 1_000, 2), ["c-first", "b-second"])


@group.case
async def without_an_occurrence_never_due(kit: Kit) -> None:
    """A schedule without a next occurrence, as a paused one is, is listed and never due."""
    await _put(kit, every_minute(paused=True), every_minute("over"))
    kit.clock.advance(366 * 86_400_000)
    expect("due", await _names(kit, 1_000), [])
    expect("all", sorted(await _names(kit)), ["nightly", "over"])


@group.case
async def new_time_in_place_of_the_old(kit: Kit) -> None:
    """Once its next occurrence has changed, a schedule is due at the new time and not at the old one."""
    now_ms = kit.clock.now_ms()
    first = every_minute(next_at_ms=now_ms)
    await _put(kit, first)
    later = next_version(first, next_at_ms=now_ms + 5_000)
    await documents.put_schedule(kit.store, "nightly", later, 1)
    expect("at the old time", await _names(kit, 0), [])
    paused = next_version(later, paused=True, next_at_ms=None)
    await documents.put_schedule(kit.store, "nightly", paused, 2)
    expect("while paused", await _names(kit, 10_000), [])
    await documents.put_schedule(kit.store, "nightly", next_version(paused, paused=False, next_at_ms=now_ms + 1), 3)
    expect("resumed", await _names(kit, 1), ["nightly"])


@group.case
async def many_of_them(kit: Kit) -> None:
    """Two hundred schedules are listed and found by their times like three."""
    now_ms = kit.clock.now_ms()
    schedules = [every_minute(f"s-{n:03}", next_at_ms=now_ms + (n * 79) % 200) for n in range(200)]
    await asyncio.gather(*(documents.put_schedule(kit.store, each.name, each, 0) for each in schedules))
    by_time = [each.name for each in sorted(schedules, key=lambda each: each.next_at_ms or 0)]
    expect("all", await _names(kit), by_time)
    expect("due", await _names(kit, 49), by_time[:50])
    expect("first ten that are due", await _names(kit, 49, 10), by_time[:10])


@group.case
async def tasks_and_schedules_do_not_meet(kit: Kit) -> None:
    """Pruning, promotion and the lists of queues and tasks know nothing of schedules."""
    await _put(kit, every_minute(next_at_ms=kit.clock.now_ms()))
    expect("queues", await kit.store.counts(), [])
    expect("next due", (await kit.promote()).next_due_in_ms, None)
    await kit.prune(KEEP_NOTHING)
    expect_true("the schedule is there", await documents.schedule(kit.store, "nightly"))
    [task_id] = await kit.enqueue()
    await kit.apply(lifecycle.cancel(task_id))
    expect("due", await _names(kit, 0), ["nightly"])
