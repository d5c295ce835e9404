"""Schedules and steps over several partitions: one home for a schedule, and a move that is never half done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.partitions import first_map
from holdfast.core.priority import STRICT_STEP_MS
from holdfast.core.schedule.record import Schedule, ScheduledCall
from holdfast.core.task import State
from holdfast.errors import BadOption, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.contract import DocumentResult, DocumentWrite, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store, split_urls
from holdfast.stores.sharded.store import ShardedStore
from holdfast.testing.kit.faulty import Faults, FaultyStore
from holdfast.testing.kit.kit import Kit, every_minute, next_version
from tests.sharded.harness import PARTITIONS, ShardedSqliteHarness, url_of
from tests.sharded.test_spread import with_kit

_MAP = first_map(("a", "b", "c"))
#: One queue for each partition.
QUEUES = [next(f"q-{n}" for n in range(99) if _MAP.partitions(f"q-{n}")[0] == place) for place in range(PARTITIONS)]


async def copies(store: Store, name: str = "nightly") -> list[Schedule | None]:
    return [await documents.schedule(partition, name) for partition in await store.partitions()]


def moved_to(schedule: Schedule, queue: str) -> Schedule:
    return next_version(schedule, call=ScheduledCall(type="kit.work", queue=queue))


def test_a_schedule_lies_where_the_tasks_of_its_queue_go(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        for place, queue in enumerate(QUEUES):
            schedule = every_minute(queue, queue)
            task = kit.new_task(queue=queue, request_id=f"{queue}@1")
            assert await documents.put_schedule(kit.store, queue, schedule, 0, [task])
            assert await copies(kit.store, queue) == [schedule if n == place else None for n in range(PARTITIONS)]
            assert await (await kit.store.partitions())[place].get([task.task_id]) == [await kit.record(task.task_id)]

    with_kit(tmp_path, check, width=1)


def test_a_task_of_another_partition_cannot_be_recorded_with_it(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        task = kit.new_task(queue=QUEUES[1], request_id="r-1")
        with pytest.raises(BadOption, match="lies in partition 0") as caught:
            await documents.put_schedule(kit.store, "nightly", every_minute(queue=QUEUES[0]), 0, [task])
        assert "\n" not in str(caught.value)
        assert await copies(kit.store) == [None] * PARTITIONS
        assert await kit.store.get([task.task_id]) == [None]

    with_kit(tmp_path, check, width=1)


def test_it_moves_with_its_queue_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        schedule = every_minute(queue=QUEUES[0], next_at_ms=kit.clock.now_ms())
        await documents.put_schedule(kit.store, "nightly", schedule, 0)
        for place in (1, 2, 0, 1):
            schedule = moved_to(schedule, QUEUES[place])
            assert await documents.put_schedule(kit.store, "nightly", schedule, schedule.version - 1)
            assert await copies(kit.store) == [schedule if n == place else None for n in range(PARTITIONS)]

    with_kit(tmp_path, check, width=1)


def test_a_move_by_an_old_version_changes_nothing(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        first = every_minute(queue=QUEUES[0])
        await documents.put_schedule(kit.store, "nightly", first, 0)
        second = next_version(first, source="edited")
        await documents.put_schedule(kit.store, "nightly", second, 1)
        before = await copies(kit.store)
        assert not await documents.put_schedule(kit.store, "nightly", moved_to(first, QUEUES[1]), 1)
        assert not await documents.put_schedule(kit.store, "nightly", every_minute(queue=QUEUES[2]), 0)
        assert await copies(kit.store) == before

    with_kit(tmp_path, check, width=1)


# -- moves that are cut off ----------------------------------------------------------------------------------


class _Cut(PassingStore):
    """A partition that goes away at the call whose number comes up, before or after it has been made."""

    def __init__(self, inner: Store, calls: list[str], cut_at: int, answered: bool) -> None:
        super().__init__(inner)
        self._calls = calls
        self._cut_at = cut_at
        self._answered = answered

    async def put(self, write: DocumentWrite) -> DocumentResult:
        if write.kind != documents.SCHEDULE:
            return await self.inner.put(write)
        self._calls.append(write.name)
        if len(self._calls) != self._cut_at:
            return await self.inner.put(write)
        if self._answered:
            await self.inner.put(write)
        raise StoreUnavailable("away (on purpose)")


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("cut_at", [1, 2, 3])
def test_a_move_that_is_cut_off_occurrences_in_one_place_at_most_and_is_finished_by_its_repeat(
    tmp_path: Path, cut_at: int, answered: bool
) -> None:
    async def check(kit: Kit) -> None:
        schedule = every_minute(queue=QUEUES[0], next_at_ms=kit.clock.now_ms())
        await documents.put_schedule(kit.store, "nightly", schedule, 0)
        new, task = moved_to(schedule, QUEUES[2]), kit.new_task(queue=QUEUES[2], request_id="occurrence-1")
        calls: list[str] = []
        parts = [_Cut(partition, calls, cut_at, answered) for partition in await kit.store.partitions()]
        cut = ShardedStore(parts)
        with pytest.raises(StoreUnavailable):
            await documents.put_schedule(cut, "nightly", new, 1, [task])
        firing = [copy for copy in await copies(kit.store) if copy and copy.next_at_ms is not None]
        assert len(firing) <= 1
        [found] = (await documents.schedules(kit.store)).schedules
        assert found == await documents.schedule(kit.store, "nightly")
        assert found in (schedule, new, replace(new, next_at_ms=None))
        for _ in range(2):
            assert await documents.put_schedule(cut, "nightly", new, 1, [task])
        assert await copies(kit.store) == [None, None, new]
        assert (await kit.counts(QUEUES[2])).states == {State.READY: 1}

    with_kit(tmp_path, check, width=1)


def test_after_a_cut_another_one_can_edit_or_remove_what_is_there(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        for cut_at in (2, 3):
            schedule = every_minute(queue=QUEUES[0], next_at_ms=kit.clock.now_ms())
            await documents.put_schedule(kit.store, "nightly", schedule, 0)
            calls: list[str] = []
            parts = [_Cut(partition, calls, cut_at, False) for partition in await kit.store.partitions()]
            with pytest.raises(StoreUnavailable):
                await documents.put_schedule(ShardedStore(parts), "nightly", moved_to(schedule, QUEUES[1]), 1)
            found = await documents.schedule(kit.store, "nightly")
            assert found is not None
            edited = moved_to(found, QUEUES[2])
            assert await documents.put_schedule(kit.store, "nightly", edited, found.version)
            assert await copies(kit.store) == [None, None, edited]
            assert await documents.put_schedule(kit.store, "nightly", None, edited.version)
            assert await copies(kit.store) == [None] * PARTITIONS

    with_kit(tmp_path, check, width=1)


@pytest.mark.parametrize("seed", range(4))
def test_lost_calls_and_replies_lose_no_occurrence_and_make_none_twice(tmp_path: Path, seed: int) -> None:
    async def run() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        parts = [
            FaultyStore(open_store(url, clock=harness.clock), Faults(seed * 3 + n, lost_calls=0.15, lost_replies=0.15))
            for n, url in enumerate(split_urls(url_of(tmp_path)))
        ]
        kit = Kit(harness, ShardedStore(parts))
        await _insist(kit.begin)
        schedule = every_minute(queue=QUEUES[0])
        assert await _insist(partial(documents.put_schedule, kit.store, "nightly", schedule, 0))
        for occurrence in range(30):
            queue = QUEUES[occurrence // 4 % PARTITIONS]
            schedule = replace(moved_to(schedule, queue), next_at_ms=occurrence)
            task = kit.new_task(queue=queue, request_id=f"occurrence-{occurrence}")
            put = partial(documents.put_schedule, kit.store, "nightly", schedule, schedule.version - 1, [task])
            assert await _insist(put)
        for part in parts:
            part.strike(False)
        assert (await documents.schedules(kit.store)).schedules == [schedule]
        assert sum(counts.states[State.READY] for counts in await kit.store.counts()) == 30
        await kit.close()

    asyncio.run(run())


async def _insist(call: Callable[[], Awaitable[object]]) -> object:
    for _ in range(500):
        try:
            return await call()
        except StoreUnavailable:
            continue
    raise AssertionError("no reply in 500 calls")


# -- steps and deadlines ----------------------------------------------------------------------------------------


def test_a_step_holds_in_every_partition_of_a_spread_queue(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        low = await kit.enqueue(9)
        await documents.set_step(kit.store, "default", STRICT_STEP_MS)
        kit.clock.advance(86_400_000)
        high = await kit.enqueue(9, priority=1)
        for partition in await kit.store.partitions():
            request = replace(kit.request(6), map_version=(await documents.partition_map(partition)).version)
            taken = [task.task_id for task in (await partition.reserve(request)).tasks]
            assert set(taken[:3]) <= set(high)
            assert set(taken[3:]) <= set(low)
        assert (await kit.counts()).step_ms == STRICT_STEP_MS

    with_kit(tmp_path, check)


def test_unstarted_tasks_of_all_partitions_are_found(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        policy = replace(kit.new_task().policy, expires_ms=1_000)
        ids = await kit.enqueue(9, policy=policy)
        kit.clock.advance(1_000)
        assert sorted((await kit.store.expired()).unstarted) == sorted(ids)
        assert len((await kit.store.expired(4)).unstarted) == 4

    with_kit(tmp_path, check)
