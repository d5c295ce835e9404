"""Documents over three partitions: each kind in its place, and lists over all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import lifecycle
from holdfast.core.ids import partition_of
from holdfast.errors import BadOption, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.contract import Document, DocumentResult, DocumentWrite, Store, WorkerOrders
from holdfast.stores.decorate import PassingStore
from holdfast.stores.sharded.documents import memo_home
from holdfast.stores.sharded.store import ShardedStore
from holdfast.testing.kit.kit import Kit, every_minute
from tests.sharded.harness import PARTITIONS
from tests.sharded.test_schedules import QUEUES, moved_to
from tests.sharded.test_spread import with_kit


async def _lying(store: Store, kind: str, name: str) -> list[bool]:
    """In which partitions a document lies."""
    return [await documents.one(part, kind, name) is not None for part in await store.partitions()]


async def _walk(store: Store, kind: str, limit: int) -> list[Document]:
    found: list[Document] = []
    cursor: str | None = None
    while True:
        page = await store.documents(kind, cursor=cursor, limit=limit)
        assert len(page.documents) <= limit
        found += page.documents
        cursor = page.cursor
        if cursor is None:
            return found


def test_each_kind_lies_in_its_partition(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        store = kit.store
        await documents.put(store, "token", "ada", b"{}", 0)
        await documents.order(store, "box-1", WorkerOrders(concurrency=3))
        await documents.pause(store, QUEUES[2], True)
        home = memo_home(await documents.partition_map(store), "charge-1")
        await documents.keep(store, "charge-1", b"1", 60_000, None)
        assert await _lying(store, "token", "ada") == [True, False, False]
        assert await _lying(store, documents.ORDERS, "box-1") == [True, False, False]
        assert await _lying(store, documents.QUEUE, QUEUES[2]) == [True] * PARTITIONS
        assert await _lying(store, documents.MAP, documents.MAP_NAME) == [True] * PARTITIONS
        assert await _lying(store, documents.MEMO, "charge-1") == [n == home for n in range(PARTITIONS)]

    with_kit(tmp_path, check, width=1)


@pytest.mark.parametrize("limit", [1, 2, 5, 1_000])
def test_memos_and_schedules_of_all_partitions_are_listed_by_name_once(tmp_path: Path, limit: int) -> None:
    async def check(kit: Kit) -> None:
        names = [f"n-{n:02}" for n in range(17)]
        for n, name in enumerate(names):
            await documents.keep(kit.store, name, name.encode(), 60_000, None)
            await documents.put_schedule(kit.store, name, every_minute(name, QUEUES[n % PARTITIONS]), 0)
        for kind in (documents.MEMO, documents.SCHEDULE):
            assert [document.name for document in await _walk(kit.store, kind, limit)] == names
            some = await kit.store.documents(kind, names=["n-16", "n-03", "gone"])
            assert [document.name for document in some.documents] == ["n-03", "n-16"]
            assert (await kit.store.documents(kind, names=[])).documents == []

    with_kit(tmp_path, check, width=1)


def test_what_stays_is_listed_whatever_comes_and_goes_between_two_pages(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        for n in range(12):
            await documents.put_schedule(kit.store, f"n-{n:02}", every_minute(f"n-{n:02}", QUEUES[n % PARTITIONS]), 0)
        first = await kit.store.documents(documents.SCHEDULE, limit=5)
        for name in ("n-04", "n-05", "n-00"):
            await documents.put_schedule(kit.store, name, None, 1)
        await documents.put_schedule(kit.store, "n-00a", every_minute("n-00a", QUEUES[0]), 0)
        await documents.put_schedule(kit.store, "n-10a", every_minute("n-10a", QUEUES[1]), 0)
        rest = await kit.store.documents(documents.SCHEDULE, cursor=first.cursor)
        assert [each.name for each in first.documents] == ["n-00", "n-01", "n-02", "n-03", "n-04"]
        assert [each.name for each in rest.documents] == ["n-06", "n-07", "n-08", "n-09", "n-10", "n-10a", "n-11"]

    with_kit(tmp_path, check, width=1)


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_discards_of_all_partitions_come_newest_first(tmp_path: Path, limit: int) -> None:
    async def check(kit: Kit) -> None:
        dead = [await kit.dead_letter() for _ in range(9)]
        assert {partition_of(task_id) for task_id in dead} == {0, 1, 2}
        for task_id in dead:
            assert (await kit.store.apply([lifecycle.discard(task_id, "why")]))[0].applied
            kit.clock.advance(1)
        found = [documents.discard_of(each).task_id for each in await _walk(kit.store, documents.DISCARD, limit)]
        assert found == dead[::-1]
        assert [each.task_id for each in await documents.discards(kit.store, 4)] == dead[:-5:-1]

    with_kit(tmp_path, check)


@pytest.mark.parametrize("cursor", ["17", "", "////", "W10=", "WzEsMiwzXQ=="])
def test_a_cursor_of_something_else_is_refused(tmp_path: Path, cursor: str) -> None:
    async def check(kit: Kit) -> None:
        with pytest.raises(BadOption, match="cursor"):
            await kit.store.documents(documents.MEMO, cursor=cursor)

    with_kit(tmp_path, check)


class _Slow(PassingStore):
    """A partition whose first write of a queue's settings waits for a signal."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def put(self, write: DocumentWrite) -> DocumentResult:
        if write.kind == documents.QUEUE and not self.reached.is_set():
            self.reached.set()
            await self.go_on.wait()
        return await self.inner.put(write)


def test_of_two_changes_of_a_queue_at_once_all_partitions_end_with_the_same(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        first, second, third = await kit.store.partitions()
        slow = _Slow(second)
        pausing = asyncio.create_task(documents.pause(ShardedStore([first, slow, third]), "default", True))
        await slow.reached.wait()
        await documents.pause(kit.store, "default", False)
        slow.go_on.set()
        await pausing
        assert await _lying(kit.store, documents.QUEUE, "default") == [False] * PARTITIONS
        assert not (await kit.counts()).paused

    with_kit(tmp_path, check)


def test_a_change_of_a_queue_that_misses_a_partition_is_made_again(tmp_path: Path) -> None:
    class Away(PassingStore):
        away = True

        async def put(self, write: DocumentWrite) -> DocumentResult:
            if self.away:
                raise StoreUnavailable("away (on purpose)")
            return await self.inner.put(write)

    async def check(kit: Kit) -> None:
        first, second, third = await kit.store.partitions()
        away = Away(third)
        store = ShardedStore([first, second, away])
        with pytest.raises(StoreUnavailable):
            await documents.pause(store, "default", True)
        away.away = False
        await documents.pause(store, "default", True)
        assert await _lying(kit.store, documents.QUEUE, "default") == [True] * PARTITIONS

    with_kit(tmp_path, check)


def test_an_older_map_that_comes_late_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    class Late(PassingStore):
        hold = False

        def __init__(self, inner: Store) -> None:
            super().__init__(inner)
            self.read, self.go_on = asyncio.Event(), asyncio.Event()

        async def documents(self, kind: str, **filters: Any) -> Any:
            page, held = await self.inner.documents(kind, **filters), self.hold
            if held:
                self.read.set()
                await self.go_on.wait()
            return page

    async def check(kit: Kit) -> None:
        parts = [Late(part) for part in await kit.store.partitions()]
        store = ShardedStore(parts)
        place = await store.placement()
        Late.hold = True
        late = asyncio.create_task(documents.partition_map(store))
        await asyncio.gather(*(part.read.wait() for part in parts))
        Late.hold = False
        current = await documents.partition_map(store)
        await documents.put_partition_map(store, current.with_spread("default", PARTITIONS))
        for part in parts:
            part.go_on.set()
        assert (await late).version == current.version
        assert {place("default", None) for _ in range(9)} == {0, 1, 2}

    with_kit(tmp_path, check, width=1)


def test_a_moved_schedule_keeps_its_version(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        schedule = every_minute(queue=QUEUES[0])
        await documents.put_schedule(kit.store, "nightly", schedule, 0)
        for place in (1, 2):
            schedule = moved_to(schedule, QUEUES[place])
            assert await documents.put_schedule(kit.store, "nightly", schedule, schedule.version - 1)
            document = await documents.one(kit.store, documents.SCHEDULE, "nightly")
            assert document is not None
            assert document.version == schedule.version

    with_kit(tmp_path, check, width=1)
