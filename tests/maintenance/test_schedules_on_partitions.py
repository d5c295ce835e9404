"""Schedules on many partitions: each lies and occurrences where its tasks go, and moves when its queue does."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.admin import schedules as actions
from holdfast.core.ids import partition_of
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.occurrences import shown_time
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.stores import documents
from holdfast.stores.contract import Store
from tests.maintenance.setting import Rig, all_tasks, hasten, nodes, occurrences_made, until
from tests.sharded.harness import ShardedSqliteHarness

MINUTE_MS = 60_000
QUEUES = [f"queue-{n}" for n in range(9)]


async def _put_all(store: Store, **timing: str) -> None:
    for queue in QUEUES:
        await actions.put(store, queue, changed_timing(Timing(), **timing), ScheduledCall(type="report", queue=queue))


async def _homes(store: Store) -> dict[str, set[int]]:
    """The partitions in which there is a schedule of that name."""
    homes: dict[str, set[int]] = {}
    for n, part in enumerate(await store.partitions()):
        for schedule in (await documents.schedules(part)).schedules:
            homes.setdefault(schedule.name, set()).add(n)
    return homes


async def _nothing_is_due(store: Store) -> bool:
    return not (await documents.schedules(store, 0)).schedules


def test_each_occurrence_happens_once_in_its_own_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)

    async def run() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        store = await harness.open()
        await _put_all(store, every="1m")
        start_ms = harness.clock.now_ms()
        async with nodes(harness, 3):
            for _ in range(5):
                harness.clock.advance(MINUTE_MS)
                await until(functools.partial(_nothing_is_due, store))
        occurrences = {shown_time(start_ms + n * MINUTE_MS): 1 for n in range(1, 6)}
        assert await occurrences_made(store) == dict.fromkeys(QUEUES, occurrences)
        homes = await _homes(store)
        assert {home for places in homes.values() for home in places} == {0, 1, 2}
        for task in await all_tasks(store):
            assert {partition_of(task.task_id)} == homes[task.queue]
        await store.close()

    asyncio.run(run())


def test_a_schedule_moves_with_its_queue_and_still_knows_its_last_task(tmp_path: Path) -> None:
    async def run() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        rig = Rig(await harness.open(), harness.clock)
        await _put_all(rig.store, every="1m", overlap="skip")
        homes = await _homes(rig.store)
        other = next(queue for queue in QUEUES if homes[queue] != homes["queue-0"])
        new_id = functools.cache(rig.ids.task_id)
        task_id = await actions.run_now(rig.store, "queue-0", new_id)
        assert {partition_of(task_id)} == homes["queue-0"]

        def move(schedule: Schedule) -> tuple[Timing, ScheduledCall]:
            return schedule.timing, replace(schedule.call, queue=other)

        await actions.edit(rig.store, "queue-0", move)
        assert (await _homes(rig.store))["queue-0"] == homes[other]
        harness.clock.advance(MINUTE_MS)
        async with nodes(harness, 1):
            await until(functools.partial(_nothing_is_due, rig.store))
        after = await actions.one(rig.store, "queue-0")
        assert (after.last_task_id, after.skipped_because) == (task_id, "overlap")
        await rig.store.close()

    asyncio.run(run())
