"""Schedules: replaced by version, and found by the time of their next tick."""

from __future__ import annotations

import asyncio

from holdfast.core import lifecycle
from holdfast.core.policy import RunPolicy
from holdfast.core.schedule import Call, Missed, Overlap, Schedule, Timing
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect, expect_true
from holdfast.testing.kit import KEEP_NOTHING, Kit, every_minute, next_version

group = Group("schedules")


async def _put(kit: Kit, *schedules: Schedule) -> None:
    for schedule in schedules:
        expect(f"{schedule.name} is new", await kit.store.put_schedule(schedule.name, schedule, 0), True)


async def _names(kit: Kit, due_within_ms: int | None = None, limit: int = 1_000) -> list[str]:
    return [schedule.name for schedule in (await kit.store.schedules(due_within_ms, limit)).schedules]


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
        call=Call(
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
    expect("one", await kit.store.schedule("report:mail"), full)
    expect("another", await kit.store.schedule("nightly"), plain)
    expect("all", (await kit.store.schedules()).schedules, [full, plain])


@group.case
async def unknown_name_is_none(kit: Kit) -> None:
    """A name that no schedule has is answered with None, and a new store lists none."""
    expect("schedule", await kit.store.schedule("nightly"), None)
    listed = await kit.store.schedules()
    expect("list", (listed.now_ms, listed.schedules), (kit.clock.now_ms(), []))


@group.case
async def replaced_by_the_next_version(kit: Kit) -> None:
    """Whoever names the version that is there replaces the schedule."""
    first = every_minute()
    await _put(kit, first)
    second = next_version(first, paused=True, call=Call(type="kit.other"))
    expect("put", await kit.store.put_schedule("nightly", second, 1), True)
    expect("schedule", await kit.store.schedule("nightly"), second)
    third = next_version(second, paused=False)
    expect("put again", await kit.store.put_schedule("nightly", third, 2), True)
    expect("schedule", await kit.store.schedule("nightly"), third)
    expect("names", await _names(kit), ["nightly"])


@group.case
async def other_versions_are_refused(kit: Kit) -> None:
    """Whoever names another version than the one that is there changes nothing, and is told so."""
    second = every_minute(version=2)
    await _put(kit, every_minute())
    await kit.store.put_schedule("nightly", second, 1)
    for expected in (0, 1, 3):
        wrong = every_minute(source="too late", version=expected + 1)
        expect(f"put after {expected}", await kit.store.put_schedule("nightly", wrong, expected), False)
    for expected in (0, 1, 3):
        expect(f"removal of {expected}", await kit.store.put_schedule("nightly", None, expected), False)
    expect("schedule", await kit.store.schedule("nightly"), second)


@group.case
async def no_version_of_what_is_not_there(kit: Kit) -> None:
    """A schedule that does not exist, or not any more, has no version but 0."""
    expect("put", await kit.store.put_schedule("nightly", every_minute(version=4), 3), False)
    expect("schedule", await kit.store.schedule("nightly"), None)


@group.case
async def removed_by_its_version(kit: Kit) -> None:
    """A schedule is removed by whoever names its version, and its name is free again."""
    await _put(kit, every_minute(next_at_ms=kit.clock.now_ms()), every_minute("other"))
    expect("removal", await kit.store.put_schedule("nightly", None, 1), True)
    expect("schedule", await kit.store.schedule("nightly"), None)
    expect("due", await _names(kit, 0), [])
    expect("names", await _names(kit), ["other"])
    await _put(kit, every_minute(source="anew"))
    expect("schedule", (await kit.store.schedule("nightly")), every_minute(source="anew"))


@group.case
async def repeats_are_successes(kit: Kit) -> None:
    """The same call again is a success and does nothing: a new schedule, a replaced one, a removed one."""
    first = every_minute()
    second = next_version(first)
    for new, expected in ((first, 0), (second, 1), (None, 2)):
        for _ in range(2):
            expect(f"put after {expected}", await kit.store.put_schedule("nightly", new, expected), True)
            expect("schedule", await kit.store.schedule("nightly"), new)


@group.case
async def names_are_apart(kit: Kit) -> None:
    """What happens to one schedule does not touch another, whatever their names have in common."""
    await _put(kit, every_minute("a"), every_minute("a.b"), every_minute("A"))
    await kit.store.put_schedule("a", None, 1)
    await kit.store.put_schedule("A", every_minute("A", source="new", version=2), 1)
    expect("a.b", await kit.store.schedule("a.b"), every_minute("a.b"))
    expect("names", sorted(await _names(kit)), ["A", "a.b"])


# -- when they are due ---------------------------------------------------------------------------------------


@group.case
async def found_when_due(kit: Kit) -> None:
    """A schedule is due at the millisecond of its next tick by the store's clock, or as long before as is asked for."""
    await _put(kit, every_minute(next_at_ms=kit.clock.now_ms() + 1_000))
    expect("a second early", await _names(kit, 0), [])
    expect("within less", await _names(kit, 999), [])
    expect("within a second", await _names(kit, 1_000), ["nightly"])
    kit.clock.advance(1_000)
    due = await kit.store.schedules(0)
    expect("due", [schedule.name for schedule in due.schedules], ["nightly"])
    expect("now_ms", due.now_ms, kit.clock.now_ms())
    kit.clock.advance(3_600_000)
    expect("an hour late", await _names(kit, 0), ["nightly"])


@group.case
async def soonest_first(kit: Kit) -> None:
    """Schedules come by their next tick, those without one last, and no more than were asked for."""
    now_ms = kit.clock.now_ms()
    await _put(
        kit,
        every_minute("none", paused=True),
        every_minute("third", next_at_ms=now_ms + 300, queue="c"),
        every_minute("first", next_at_ms=now_ms - 100, queue="a"),
        every_minute("second", next_at_ms=now_ms + 200, queue="b"),
    )
    expect("all", await _names(kit), ["first", "second", "third", "none"])
    expect("two of all", await _names(kit, limit=2), ["first", "second"])
    expect("due", await _names(kit, 250), ["first", "second"])
    expect("one of the due", await _names(kit, 1_000, 1), ["first"])


@group.case
async def without_a_tick_never_due(kit: Kit) -> None:
    """A schedule without a next tick, as a paused one is, is listed and never due."""
    await _put(kit, every_minute(paused=True), every_minute("over"))
    kit.clock.advance(366 * 86_400_000)
    expect("due", await _names(kit, 1_000), [])
    expect("all", sorted(await _names(kit)), ["nightly", "over"])


@group.case
async def new_tick_in_place_of_the_old(kit: Kit) -> None:
    """Once its next tick has changed, a schedule is due at the new time and not at the old one."""
    now_ms = kit.clock.now_ms()
    first = every_minute(next_at_ms=now_ms)
    await _put(kit, first)
    later = next_version(first, next_at_ms=now_ms + 5_000)
    await kit.store.put_schedule("nightly", later, 1)
    expect("at the old time", await _names(kit, 0), [])
    paused = next_version(later, paused=True, next_at_ms=None)
    await kit.store.put_schedule("nightly", paused, 2)
    expect("while paused", await _names(kit, 10_000), [])
    await kit.store.put_schedule("nightly", next_version(paused, paused=False, next_at_ms=now_ms + 1), 3)
    expect("resumed", await _names(kit, 1), ["nightly"])


@group.case
async def many_of_them(kit: Kit) -> None:
    """Two hundred schedules are listed and found by their ticks like three."""
    now_ms = kit.clock.now_ms()
    schedules = [every_minute(f"s-{n:03}", next_at_ms=now_ms + (n * 79) % 200) for n in range(200)]
    await asyncio.gather(*(kit.store.put_schedule(each.name, each, 0) for each in schedules))
    by_tick = [each.name for each in sorted(schedules, key=lambda each: each.next_at_ms or 0)]
    expect("all", await _names(kit), by_tick)
    expect("due", await _names(kit, 49), by_tick[:50])
    expect("first ten", await _names(kit, limit=10), by_tick[:10])


@group.case
async def tasks_and_schedules_do_not_meet(kit: Kit) -> None:
    """Pruning, promotion and the lists of queues and tasks know nothing of schedules."""
    await _put(kit, every_minute(next_at_ms=kit.clock.now_ms()))
    expect("queues", await kit.store.counts(), [])
    expect("next due", (await kit.promote()).next_due_in_ms, None)
    await kit.prune(KEEP_NOTHING)
    expect_true("the schedule is there", await kit.store.schedule("nightly"))
    [task_id] = await kit.enqueue()
    await kit.apply(lifecycle.cancel(task_id))
    expect("due", await _names(kit, 0), ["nightly"])
