"""Queues over several partitions: nothing claimed twice, nothing left behind, maps that change meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.admin.workers import spread
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import partition_of
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import State
from holdfast.errors import BadOption, StaleMap, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.contract import Query, Reserve, Reserved, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store, redacted, split_urls
from holdfast.stores.sharded.router import MOST_QUEUES, Router
from holdfast.stores.sharded.store import ShardedStore
from holdfast.testing.kit.faulty import Faults, FaultyStore
from holdfast.testing.kit.kit import Kit, ack
from tests.sharded.harness import ShardedSqliteHarness, url_of


def with_kit(tmp_path: Path, check: Callable[[Kit], Awaitable[None]], width: int = 3) -> None:
    """Runs the check on a store whose queue `default` is spread over so many partitions."""

    async def run() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        kit = Kit(harness, await harness.open())
        try:
            await kit.begin()
            if width > 1:
                await spread(kit.store, "default", width)
            await check(kit)
        finally:
            await kit.close()

    asyncio.run(run())


def places(ids: list[str]) -> Counter[int]:
    return Counter(map(partition_of, ids))


def test_new_tasks_go_to_all_partitions_by_turns(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        assert places(await kit.enqueue(9)) == {0: 3, 1: 3, 2: 3}
        one_place = await kit.enqueue(1, request_id="r-1")
        answers = [await kit.add(kit.new_task(request_id="r-1")) for _ in range(5)]
        assert {answer.task_id for answer in answers} == set(one_place)

    with_kit(tmp_path, check)


@pytest.mark.parametrize("wanted", [1, 2, 7, 29, 30, 31, 100])
def test_a_reserve_gets_what_it_asks_for_from_wherever_it_is(tmp_path: Path, wanted: int) -> None:
    async def check(kit: Kit) -> None:
        ids = await kit.enqueue(30)
        taken = await kit.reserve(wanted)
        assert len({task.task_id for task in taken}) == len(taken) == min(wanted, 30)
        assert {task.task_id for task in taken} <= set(ids)

    with_kit(tmp_path, check)


def test_uneven_partitions_are_emptied_to_the_last(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        ids = await kit.enqueue(30)
        lone = [task_id for task_id in ids if partition_of(task_id) != 1][:17]
        part, current = await kit.store.partitions(), await documents.partition_map(kit.store)
        for n in (0, 2):
            own = [task_id for task_id in lone if partition_of(task_id) == n]
            request = replace(kit.request(len(own)), map_version=current.version)
            claims = (await part[n].reserve(request)).tasks
            assert len(claims) == len(own)
        left = 30 - 17
        assert len(await kit.reserve(left - 1)) == left - 1
        assert len(await kit.reserve(5)) == 1
        assert await kit.reserve(5) == []

    with_kit(tmp_path, check)


def test_no_partition_starves_while_all_have_tasks(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(300)
        taken = [task.task_id for _ in range(12) for task in await kit.reserve(5)]
        assert set(places(taken)) == {0, 1, 2}

    with_kit(tmp_path, check)


def test_a_repeat_gets_the_same_tasks_of_all_partitions_and_no_more(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(6)
        request = kit.request(10)
        first = (await kit.store.reserve(request)).tasks
        assert set(places([task.task_id for task in first])) == {0, 1, 2}
        await kit.enqueue(30)
        assert {task.token for task in (await kit.store.reserve(request)).tasks} == {task.token for task in first}
        settled = [task for task in first if partition_of(task.task_id) == 0]
        answer = await kit.store.reserve(request, [ack(task) for task in settled])
        assert {task.task_id for task in answer.tasks} == {t.task_id for t in first} - {t.task_id for t in settled}
        assert [verdict.applied for verdict in answer.verdicts] == [True] * len(settled)
        another = await kit.another()
        assert len((await another.reserve(request)).tasks) == len(answer.tasks)
        nothing_new = replace(request, types=frozenset(), max_tasks=1_000)
        assert len((await another.reserve(nothing_new)).tasks) == len(answer.tasks)

    with_kit(tmp_path, check)


def test_a_fresh_claim_id_is_not_looked_for(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(6)
        request = replace(kit.request(4), fresh=True)
        first = (await kit.store.reserve(request)).tasks
        assert len(first) == 4
        again = (await kit.store.reserve(replace(request, fresh=False))).tasks
        assert {task.task_id for task in again} == {task.task_id for task in first}

    with_kit(tmp_path, check)


def test_shares_hold_over_partitions(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(30)
        for queue in ("a", "b", "c"):
            await kit.enqueue(30, queue=queue)
        shares = [QueueShare("default", 8), QueueShare("a", 4), QueueShare("b", 2), QueueShare("c", 1)]
        taken = Counter(task.queue for task in await kit.reserve(15, shares=shares))
        assert taken == {"default": 8, "a": 4, "b": 2, "c": 1}
        taken = Counter(task.queue for task in await kit.reserve(40, shares=shares))
        assert taken == {"default": 22, "a": 15, "b": 2, "c": 1}

    with_kit(tmp_path, check)


def test_settlements_go_to_their_partitions_and_verdicts_come_in_order(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(60)
        claims = await kit.reserve(30)
        stale = replace(ack(claims[7]), token="1.1.feed")
        changes = [ack(claim) for claim in claims[:7]] + [stale] + [ack(claim) for claim in claims[8:]]
        answer = await kit.store.reserve(kit.request(10), changes)
        assert [verdict.reason for verdict in answer.verdicts] == [""] * 7 + ["stale_claim"] + [""] * 22
        assert len(answer.tasks) == 10
        assert (await kit.counts()).states == {State.SUCCEEDED: 29, State.CLAIMED: 11, State.READY: 20}

    with_kit(tmp_path, check)


def test_many_workers_share_a_spread_queue_without_overlap(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        ids = await kit.enqueue(300)
        stores = [kit.store, await kit.another()]
        answers = await asyncio.gather(*(stores[n % 2].reserve(kit.request(20)) for n in range(20)))
        taken = [task.task_id for answer in answers for task in answer.tasks]
        assert sorted(taken) == sorted(ids)
        assert all(len(answer.tasks) <= 20 for answer in answers)

    with_kit(tmp_path, check)


@pytest.mark.parametrize("seed", range(4))
def test_lost_calls_and_replies_of_a_partition_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    async def run() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        faults = [Faults(seed=seed * 3 + n, lost_calls=0.15, lost_replies=0.15) for n in range(3)]
        urls = split_urls(url_of(tmp_path))
        parts = [
            FaultyStore(open_store(url, clock=harness.clock), each) for url, each in zip(urls, faults, strict=True)
        ]
        kit = Kit(harness, ShardedStore(parts))
        await _insist(kit.begin)
        await _insist(lambda: spread(kit.store, "default", 3))
        tasks = [kit.new_task() for _ in range(60)]
        for start in range(0, 60, 10):
            await _insist(partial(kit.store.enqueue, tasks[start : start + 10]))
        done: set[str] = set()
        changes: list[Any] = []
        while len(done) < 60:
            answer = await _insist(partial(kit.store.reserve, kit.request(7), changes))
            assert all(verdict.applied for verdict in answer.verdicts)
            assert len(answer.tasks) <= 7
            assert not done & {task.task_id for task in answer.tasks}
            changes = [ack(claim) for claim in answer.tasks]
            done |= {task.task_id for task in answer.tasks}
        await _insist(lambda: kit.store.apply(changes))
        for part in parts:
            part.strike(False)
        records = await kit.store.get([task.task_id for task in tasks])
        # Claims that nobody heard of are handed back, which uses up no attempt.
        assert [(record.state, record.attempt) for record in records if record] == [(State.SUCCEEDED, 1)] * 60
        await kit.close()

    asyncio.run(run())


async def _insist(call: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(500):
        try:
            return await call()
        except StoreUnavailable:
            continue
    raise AssertionError("no reply in 500 calls")


class _Watched(PassingStore):
    """A partition that notes what is settled in it, and may refuse one reserve because of a newer map."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.settled: list[str] = []
        self.refusals = 0

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        if self.refusals:
            self.refusals -= 1
            raise StaleMap("a newer map (on purpose)")
        self.settled += [change.task_id for change in settle]
        return await self.inner.reserve(request, settle)

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        self.settled += [change.task_id for change in changes]
        return await self.inner.apply(changes)


def test_a_newer_map_in_the_middle_of_a_reserve_loses_none_of_its_claims(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(30)
        for refusing in range(3):
            parts = [_Watched(part) for part in await kit.store.partitions()]
            parts[refusing].refusals = 1
            request = replace(kit.request(9), fresh=True)
            answer = await ShardedStore(parts).reserve(request)
            held = await kit.store.reserve(replace(request, fresh=False, types=frozenset()))
            assert {task.task_id for task in held.tasks} == {task.task_id for task in answer.tasks}

    with_kit(tmp_path, check)


def test_each_settlement_is_sent_once_however_many_rounds_a_reserve_takes(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(30)
        claims = await kit.reserve(21)
        parts = [_Watched(part) for part in await kit.store.partitions()]
        answer = await ShardedStore(parts).reserve(kit.request(9), [ack(claim) for claim in claims])
        assert len(answer.tasks) == 9
        sent = [task_id for part in parts for task_id in part.settled]
        assert sorted(sent) == sorted(claim.task_id for claim in claims)

    with_kit(tmp_path, check)


# -- the map changes -----------------------------------------------------------------------------------------


def test_a_client_with_an_old_map_is_refused_and_refreshes(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        other = await kit.another()
        place = await other.placement()
        assert {place("default", None) for _ in range(9)} == {1}
        await spread(kit.store, "default", 3)
        assert {place("default", None) for _ in range(9)} == {1}, "nobody has told it yet"
        old = [kit.new_task(task_id=kit.ids.task_id(1)) for _ in range(3)]
        assert [answer.created for answer in await other.enqueue(old)] == [True] * 3
        assert {place("default", None) for _ in range(9)} == {0, 1, 2}

    with_kit(tmp_path, check, width=1)


def test_a_worker_with_an_old_map_finds_the_new_partitions(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        other = await kit.another()
        assert (await other.reserve(kit.request(9))).tasks == []
        await spread(kit.store, "default", 3)
        ids = await kit.enqueue(9)
        taken = (await other.reserve(kit.request(9))).tasks
        assert {task.task_id for task in taken} == set(ids)

    with_kit(tmp_path, check, width=1)


def test_what_is_in_a_partition_that_a_queue_has_left_is_worked_off(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        before = await kit.enqueue(9)
        await spread(kit.store, "default", 1)
        after = await kit.enqueue(9)
        assert set(places(before)) == {0, 1, 2}
        assert set(places(after)) == {1}
        another = await kit.another()
        assert {task.task_id for task in (await another.reserve(kit.request(20))).tasks} == {*before, *after}

    with_kit(tmp_path, check)


def test_two_changes_at_once_both_take_effect(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        stores = [kit.store, await kit.another()]
        await asyncio.gather(*(spread(stores[n % 2], f"q-{n}", 2) for n in range(4)))
        current = await documents.partition_map(kit.store)
        assert current.spread == {f"q-{n}": 2 for n in range(4)}
        versions = {(await documents.partition_map(part)).version for part in await kit.store.partitions()}
        assert versions == {current.version}

    with_kit(tmp_path, check, width=1)


def test_a_partition_that_missed_a_map_gets_it_from_the_next_client(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        first = (await kit.store.partitions())[0]
        current = await documents.partition_map(first)
        # And dies before it tells the others.
        await documents.put_partition_map(first, current.with_spread("default", 3))
        assert (await documents.partition_map((await kit.store.partitions())[2])).version == current.version
        another = await kit.another()
        await another.placement()
        versions = {(await documents.partition_map(part)).version for part in await kit.store.partitions()}
        assert versions == {current.version + 1}

    with_kit(tmp_path, check, width=1)


def test_a_task_that_nobody_would_find_is_refused(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        for wrong in (kit.ids.task_id(0), kit.ids.task_id(2), kit.ids.task_id(77)):
            with pytest.raises(StaleMap, match="placement"):
                await kit.add(kit.new_task(task_id=wrong))
        assert (await kit.counts()).states == {}

    with_kit(tmp_path, check, width=1)


# -- looking -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 40, 41, 1_000])
def test_pages_over_partitions_show_every_task_once_newest_first(tmp_path: Path, limit: int) -> None:
    async def check(kit: Kit) -> None:
        ids = []
        for _ in range(40):
            ids += await kit.enqueue()
            kit.clock.advance(1)
        found: list[str] = []
        query = Query(limit=limit)
        while True:
            page = await kit.store.find(query)
            found += [task.task_id for task in page.tasks]
            if page.cursor is None:
                break
            query = replace(query, cursor=page.cursor)
        assert found == ids[::-1]

    with_kit(tmp_path, check)


def test_tasks_that_come_between_two_pages_are_not_shown_twice(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        ids = await kit.enqueue(30)
        first = await kit.store.find(Query(limit=10))
        kit.clock.advance(1)
        await kit.enqueue(30)
        second = await kit.store.find(Query(limit=50, cursor=first.cursor))
        assert sorted(task.task_id for task in [*first.tasks, *second.tasks]) == sorted(ids)

    with_kit(tmp_path, check)


@pytest.mark.parametrize("cursor", ["17", "", "////", "W10=", "WzEsMiwzXQ=="])
def test_a_cursor_of_something_else_is_refused(tmp_path: Path, cursor: str) -> None:
    async def check(kit: Kit) -> None:
        with pytest.raises(BadOption, match="cursor"):
            await kit.store.find(Query(cursor=cursor))

    with_kit(tmp_path, check)


def test_the_oldest_wait_is_that_of_all_partitions(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        for _ in range(3):
            await kit.enqueue()
            kit.clock.advance(1_000)
        assert (await kit.counts()).oldest_ready_ms == 3_000

    with_kit(tmp_path, check)


@pytest.mark.parametrize("limit", [1, 4, 9, 20])
def test_no_more_expired_claims_than_asked_for_and_some_of_each_partition(tmp_path: Path, limit: int) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(9)
        await kit.reserve(9, lease_ms=1_000)
        kit.clock.advance(1_001)
        expired = [claim.task_id for claim in (await kit.store.expired(limit)).claims]
        assert len(set(expired)) == len(expired) == min(limit, 9)
        assert len(places(expired)) == min(limit, 3)

    with_kit(tmp_path, check)


# -- waiting and opening -------------------------------------------------------------------------------------


def test_a_ring_in_any_partition_wakes_a_waiter(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        for _ in range(3):
            waiter = asyncio.create_task(kit.store.wait(["default"], 20_000))
            for _ in range(100):
                await kit.enqueue()
                if (await asyncio.wait([waiter], timeout=0.1))[0]:
                    break
            assert await waiter
            await kit.reserve(100)
        assert not await kit.store.wait(["another"], 20)

    with_kit(tmp_path, check)


def test_lists_of_urls_are_told_from_commas_inside_of_one() -> None:
    assert split_urls("redis://a:6379/0,redis://b:6379/0") == ["redis://a:6379/0", "redis://b:6379/0"]
    assert split_urls("redis+cluster://a:1,b:2/0") == ["redis+cluster://a:1,b:2/0"]
    assert split_urls("sqlite:///one,two.db") == ["sqlite:///one,two.db"]
    assert redacted("redis://:secret@a/0,redis://u:secret@b/0") == "redis://:***@a/0,redis://u:***@b/0"


def test_partitions_are_stores_of_their_own(tmp_path: Path) -> None:
    async def check() -> None:
        store: Store = open_store(url_of(tmp_path))
        assert [part.url for part in await store.partitions()] == split_urls(store.url)
        single = open_store(f"sqlite:///{tmp_path}/one.db")
        assert list(await single.partitions()) == [single]

    asyncio.run(check())


def test_the_places_of_made_up_queues_do_not_fill_the_memory(tmp_path: Path) -> None:
    router = Router([open_store(f"sqlite:///{tmp_path}/{n}.db") for n in range(2)])
    for number in range(3 * MOST_QUEUES):
        router.place(f"made-up-{number}", None)
    assert len(router._known.candidates) <= MOST_QUEUES
