"""Occurrences become tasks, on every store: late, missed, overlapping, raced for, and in trouble."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.admin import schedules as actions
from holdfast.core import lifecycle
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import NewTask, State, Task
from holdfast.errors import StaleEpoch, StoreFull, StoreUnavailable
from holdfast.maintenance import scheduler
from holdfast.maintenance.reaper import Reaper
from holdfast.maintenance.scheduler import Scheduler
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, DocumentResult, DocumentWrite, Store
from holdfast.stores.decorate import PassingStore
from holdfast.testing.kit.harness import SqliteMemoryHarness, StoreHarness
from tests.maintenance.setting import CALL, Rig, on_store

MINUTE_MS = 60_000
#: The clock of the tests begins at 2027-01-15T08:00:00Z.
T = "2027-01-15T08:0{}:00Z"


def minutes(*numbers: int) -> list[str]:
    return [T.format(number) for number in numbers]


def test_an_occurrence_becomes_a_task_of_its_own_id_and_the_next_one_is_awaited(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        call = ScheduledCall(
            type="report", queue="slow", payload=b'{"a":1}', priority=4, policy=RunPolicy(max_attempts=2)
        )
        await rig.put(call=call, every="1m")
        assert await rig.look() == 1_000
        assert await rig.look(MINUTE_MS - 300) == 300
        assert await rig.tasks() == []
        await rig.look(300)
        (task,) = await rig.tasks()
        assert (task.type, task.queue, task.priority, task.state) == ("report", "slow", 4, State.READY)
        assert (task.payload, task.policy.max_attempts) == (b'{"a":1}', 2)
        assert task.request_id == f"schedule:s@{T.format(1)}"
        assert task.headers == {"schedule": "s", "occurrence": T.format(1)}
        after = await actions.one(rig.store, "s")
        assert (after.last_task_id, after.last_at_ms) == (task.task_id, rig.clock.now_ms())
        assert after.next_at_ms == rig.clock.now_ms() + MINUTE_MS

    on_store(harness, case)


def test_jitter_delays_the_task_and_not_the_occurrence(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m", jitter="50s")
        await rig.look(MINUTE_MS)
        (task,) = await rig.tasks()
        assert task.state is State.SCHEDULED
        assert rig.clock.now_ms() < task.run_at_ms < rig.clock.now_ms() + 50_000
        assert await rig.occurrences() == minutes(1)

    on_store(harness, case)


@pytest.mark.parametrize(
    ("missed", "made"), [("skip", []), ("once", [6]), ("all", [4, 5, 6])], ids=["skip", "once", "all"]
)
def test_occurrences_that_nobody_made_in_time(harness: StoreHarness, missed: str, made: list[int]) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m", missed=missed, window="3m")
        await rig.look(6 * MINUTE_MS + 30_000)
        assert await rig.occurrences() == minutes(*made)
        await rig.look(30_000)
        assert await rig.occurrences() == minutes(*made, 7)

    on_store(harness, case)


def test_many_missed_occurrences_are_made_in_several_calls(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_OCCURRENCES_AT_ONCE", 2)

    async def case(rig: Rig) -> None:
        await rig.put(every="1m", missed="all")
        await rig.look(7 * MINUTE_MS)
        assert await rig.occurrences() == minutes(1, 2, 3, 4, 5, 6, 7)

    on_store(harness, case)


def test_an_occurrence_is_skipped_while_the_last_task_is_active(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m", overlap="skip")
        for _ in range(3):
            await rig.look(MINUTE_MS)
        assert await rig.occurrences() == minutes(1)
        assert (await actions.one(rig.store, "s")).skipped_because == "overlap"
        assert await rig.finish() == 1
        await rig.look(MINUTE_MS)
        assert await rig.occurrences() == minutes(1, 4)

    on_store(harness, case)


def test_an_occurrence_waits_in_line_and_is_made_when_the_last_task_has_ended(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m", overlap="queue", missed="skip")
        for _ in range(4):
            await rig.look(MINUTE_MS + 5_000)
        assert await rig.occurrences() == minutes(1)
        assert (await actions.one(rig.store, "s")).waiting
        assert await rig.finish() == 1
        await rig.look()
        assert await rig.occurrences() == minutes(1, 2)
        assert not (await actions.one(rig.store, "s")).waiting

    on_store(harness, case)


def test_of_several_occurrences_at_once_the_task_of_the_last_one_is_watched(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m", missed="all")
        await rig.look(3 * MINUTE_MS)
        first, *_, last = await rig.tasks()
        assert (await actions.one(rig.store, "s")).last_task_id == last.task_id
        await rig.put(every="1m", missed="all", overlap="skip")
        acks = [lifecycle.ack(task.task_id, task.token) for task in await rig.claim(3)]
        await rig.store.apply([change for change in acks if change.task_id == first.task_id])
        await rig.look(MINUTE_MS)
        assert await rig.occurrences() == minutes(1, 2, 3)
        await rig.store.apply(acks)
        await rig.look(MINUTE_MS)
        assert await rig.occurrences() == minutes(1, 2, 3, 5)

    on_store(harness, case)


class PartlyAway(PassingStore):
    """A store of which the partition with the tasks does not answer."""

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        raise StoreUnavailable("away")


@pytest.mark.parametrize(("overlap", "made"), [("skip", []), ("queue", []), ("allow", [1])])
def test_a_task_in_a_partition_that_is_away_counts_as_active(overlap: str, made: list[int]) -> None:
    async def case(rig: Rig) -> None:
        schedule = await rig.put(every="1m", overlap=overlap)
        elsewhere = replace(schedule, last_task_id=rig.ids.task_id(partition=1), version=2)
        assert await documents.put_schedule(rig.store, "s", elsewhere, 1)
        rig.scheduler = Scheduler(PartlyAway(rig.store), 0)
        await rig.look(MINUTE_MS)
        assert await rig.occurrences() == minutes(*made)

    on_store(SqliteMemoryHarness(), case)


def test_a_task_in_our_own_partition_that_is_away_stops_the_look() -> None:
    async def case(rig: Rig) -> None:
        schedule = await rig.put(every="1m", overlap="skip")
        assert await documents.put_schedule(
            rig.store, "s", replace(schedule, last_task_id=rig.ids.task_id(), version=2), 1
        )
        rig.scheduler = Scheduler(PartlyAway(rig.store), 0)
        with pytest.raises(StoreUnavailable):
            await rig.look(MINUTE_MS)

    on_store(SqliteMemoryHarness(), case)


def test_the_watched_task_may_be_gone(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        schedule = await rig.put(every="1m", overlap="skip")
        gone = replace(schedule, last_task_id=rig.ids.task_id(), version=2)
        assert await documents.put_schedule(rig.store, "s", gone, 1)
        await rig.look(MINUTE_MS)
        assert await rig.occurrences() == minutes(1)

    on_store(harness, case)


def test_a_pause_has_no_occurrences_and_makes_up_for_none(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m", missed="all")
        await rig.look(MINUTE_MS)
        await actions.pause(rig.store, "s")
        await rig.look(3 * MINUTE_MS)
        await actions.resume(rig.store, "s")
        await rig.look(MINUTE_MS)
        assert await rig.occurrences() == minutes(1, 5)
        await actions.remove(rig.store, "s")
        assert await rig.look(MINUTE_MS) == 1_000
        assert await rig.occurrences() == minutes(1, 5)

    on_store(harness, case)


# -- several at once --------------------------------------------------------------------------------------------


def test_two_nodes_that_both_believe_to_be_the_owner_make_each_occurrence_once(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        for name in "abcde":
            await rig.put(name, every="1m")
        duty = await rig.store.lead(MAINTENANCE, "node", 3_600_000)
        twin = await harness.open()
        other = Scheduler(twin, 0)
        for _ in range(3):
            rig.clock.advance(MINUTE_MS)
            await asyncio.gather(
                *(rig.scheduler.run_once(rig.store, duty.epoch) for _ in range(2)),
                *(other.run_once(twin, duty.epoch) for _ in range(2)),
            )
            await rig.look()
        assert [await rig.occurrences(name) for name in "abcde"] == [minutes(1, 2, 3)] * 5
        await twin.close()

    on_store(harness, case)


def test_a_former_owner_makes_no_occurrence(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m")
        old = await rig.store.lead(MAINTENANCE, "old", 1_000)
        rig.clock.advance(MINUTE_MS)
        await rig.store.lead(MAINTENANCE, "new", 60_000)
        with pytest.raises(StaleEpoch):
            await rig.scheduler.run_once(rig.store, old.epoch)
        assert await rig.tasks() == []

    on_store(harness, case)


def test_somebody_changes_the_schedule_at_the_very_occurrence(harness: StoreHarness) -> None:
    class Edited(PassingStore):
        async def put(self, write: DocumentWrite) -> DocumentResult:
            if write.epoch is not None and write.expected == 1:
                await actions.edit(self.inner, write.name, lambda each: (each.timing, replace(each.call, priority=9)))
            return await self.inner.put(write)

    async def case(rig: Rig) -> None:
        rig.store = Edited(rig.store)
        await rig.put(every="1m")
        await rig.look(MINUTE_MS)
        (task,) = await rig.tasks()
        assert task.priority == 9

    on_store(harness, case)


# -- trouble ----------------------------------------------------------------------------------------------------


class Troubled(PassingStore):
    """Cannot put the schedule of this name."""

    def __init__(self, inner: Store, name: str, error: Exception) -> None:
        super().__init__(inner)
        self.name = name
        self.error: Exception | None = error

    async def put(self, write: DocumentWrite) -> DocumentResult:
        if write.name == self.name and self.error and write.epoch is not None:
            raise self.error
        return await self.inner.put(write)


@pytest.mark.parametrize("error", [StoreFull("no room"), ValueError("a bug")])
def test_trouble_with_one_schedule_does_not_stop_the_others(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def case(rig: Rig) -> None:
        rig.store = store = Troubled(rig.store, "b", error)
        for name in "abc":
            await rig.put(name, every="1m")
        await rig.look(MINUTE_MS)
        await rig.look(1)
        assert [await rig.occurrences(name) for name in "abc"] == [minutes(1), [], minutes(1)]
        store.error = None
        await rig.look(1)
        assert await rig.occurrences("b") == minutes(1)

    with caplog.at_level(logging.INFO):
        on_store(SqliteMemoryHarness(), case)
    assert [record.getMessage() for record in caplog.records] == [
        f"schedule b: its occurrence of {T.format(1)} cannot be made yet: {error}"
    ]


def test_a_store_that_is_away_is_the_business_of_the_upkeep() -> None:
    async def case(rig: Rig) -> None:
        rig.store = Troubled(rig.store, "s", StoreUnavailable("away"))
        await rig.put(every="1m")
        with pytest.raises(StoreUnavailable):
            await rig.look(MINUTE_MS)

    on_store(SqliteMemoryHarness(), case)


def test_schedules_that_wait_do_not_crowd_out_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_BATCH", 3)

    async def case(rig: Rig) -> None:
        for n in range(7):
            await rig.put(f"w{n}", every="1m", overlap="queue")
        await rig.look(MINUTE_MS)
        await rig.look(MINUTE_MS)  # all of them wait from now on
        await rig.put("urgent", every="1m")
        for _ in range(4):
            await rig.look(20_000)
        assert await rig.occurrences("urgent") == minutes(3)

    on_store(SqliteMemoryHarness(), case)


def test_skipped_occurrences_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async def case(rig: Rig) -> None:
        await rig.put(every="1m", missed="skip")
        await rig.look(3 * MINUTE_MS + 30_000)

    with caplog.at_level(logging.INFO):
        on_store(SqliteMemoryHarness(), case)
    assert [record.getMessage() for record in caplog.records] == [
        f"schedule s: occurrences from {T.format(1)} on are skipped: no process could make them in time"
    ]


# -- the deadline to start --------------------------------------------------------------------------------------


def test_what_was_not_begun_in_time_is_cancelled(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        soon, patient = RunPolicy(expires_ms=1_000), RunPolicy(expires_ms=60_000)
        tasks = [
            NewTask(task_id=rig.ids.task_id(), type="t", queue=queue, payload=b"{}", policy=policy)
            for queue, policy in (("default", soon), ("other", soon), ("other", patient), ("other", RunPolicy()))
        ]
        await rig.store.enqueue(tasks)
        await rig.finish()  # the first of them has begun
        duty = await rig.store.lead(MAINTENANCE, "node", 3_600_000)
        rig.clock.advance(1_001)
        assert await Reaper().run_once(rig.store, duty.epoch) == 1_000
        found = await rig.store.get([task.task_id for task in tasks])
        assert [task.state for task in found if task] == [
            State.SUCCEEDED,
            State.CANCELLED,
            State.READY,
            State.READY,
        ]
        assert [task.reason for task in found if task and task.state is State.CANCELLED] == [
            "expired: not started in time"
        ]

    on_store(harness, case)


def test_schedules_of_another_call_are_not_looked_at_before_their_time(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        await rig.put("far", every="1d")
        await rig.put("near", every="1m")
        assert await rig.look(MINUTE_MS - 500) == 500
        assert (await documents.schedules(rig.store, 499)).schedules == []
        assert [each.name for each in (await documents.schedules(rig.store, 500)).schedules] == ["near"]

    on_store(harness, case)


def test_a_timing_that_this_node_cannot_read_is_told_and_left(caplog: pytest.LogCaptureFixture) -> None:
    async def case(rig: Rig) -> None:
        unknown = Timing(cron="0 3 * * *", timezone="Mars/Phobos")  # from a node with newer tables
        now_ms = rig.clock.now_ms()
        schedule = Schedule(name="s", timing=unknown, call=CALL, next_at_ms=now_ms)
        await documents.put_schedule(rig.store, "s", schedule, 0)
        await rig.look()
        assert await rig.tasks() == []

    with caplog.at_level(logging.INFO):
        on_store(SqliteMemoryHarness(), case)
    assert "'Mars/Phobos' is unknown" in caplog.text
