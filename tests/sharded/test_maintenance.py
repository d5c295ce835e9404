"""Each partition has one owner with an epoch: owners share them, and one that is gone is replaced and refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.admin.workers import PartitionRow, partition_table, spread
from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.task import State
from holdfast.errors import StaleEpoch
from holdfast.maintenance import service
from holdfast.maintenance.service import Maintenance
from holdfast.stores.contract import MAINTENANCE, Retention, Store, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.testing.kit.kit import Kit
from tests.sharded.harness import ShardedSqliteHarness, url_of
from tests.support import eventually, run_worker

T = TypeVar("T")


def _maintain(store: Store, owner: str) -> asyncio.Task[None]:
    return asyncio.create_task(Maintenance(store, owner, Retention(), random_unit=random.random).run())


async def _owners(store: Store) -> list[str | None]:
    return [row.owner for row in await partition_table(store)]


async def _until(condition: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(90):
        while not (value := await condition()):  # noqa: ASYNC110  (other processes change it)
            await asyncio.sleep(0.02)
    return value


async def _end(maintenance: asyncio.Task[None]) -> None:
    maintenance.cancel()
    await asyncio.gather(maintenance, return_exceptions=True)


async def _announce(store: Store, worker_id: str) -> None:
    plain = {"host": "h", "pid": 1, "version": "1", "queues": (), "types": ()}
    await store.announce(WorkerRecord(worker_id=worker_id, processes=1, concurrency=1, running=0, **plain), 60_000)  # type: ignore[arg-type]


def test_two_owners_share_the_partitions_and_one_takes_over_what_the_other_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_RENEWALS_PER_BALANCE", 1)

    async def run() -> None:
        stores = [open_store(url_of(tmp_path)) for _ in range(2)]
        for name in ("first", "second"):  # One that took all of them gives some away only to workers that it knows of.
            await _announce(stores[0], name)
        first, second = _maintain(stores[0], "first"), _maintain(stores[1], "second")

        async def shared() -> bool:
            return set(await _owners(stores[0])) == {"first", "second"}

        async def taken_over() -> bool:
            return set(await _owners(stores[1])) == {"second"}

        await _until(shared)
        await _end(first)
        await _until(taken_over)
        await _end(second)
        assert await _owners(stores[0]) == [None] * 3
        for store in stores:
            await store.close()

    asyncio.run(run())


def test_a_newcomer_gets_its_share_of_an_owner_that_has_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_RENEWALS_PER_BALANCE", 1)

    async def run() -> None:
        stores = [open_store(url_of(tmp_path)) for _ in range(2)]
        await _announce(stores[0], "first")
        first = _maintain(stores[0], "first")

        async def alone() -> bool:
            return await _owners(stores[0]) == ["first"] * 3

        async def shared() -> bool:
            return sorted(map(str, await _owners(stores[0]))) == ["first", "first", "second"]

        await _until(alone)
        await _announce(stores[1], "second")
        second = _maintain(stores[1], "second")
        await _until(shared)
        await asyncio.gather(_end(first), _end(second))
        for store in stores:
            await store.close()

    asyncio.run(run())


def test_every_partition_promotes_what_is_due_in_it(tmp_path: Path) -> None:
    async def run() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        kit = Kit(harness, await harness.open())
        await kit.begin()
        await spread(kit.store, "default", 3)
        kit.place = await kit.store.placement()
        await kit.enqueue(6, delay_ms=50)
        maintenance = _maintain(kit.store, "me")
        harness.clock.advance(50)

        async def promoted() -> bool:
            return (await kit.counts()).states == {State.READY: 6}

        await _until(promoted)
        await _end(maintenance)
        await kit.close()

    asyncio.run(run())


def test_maintenance_of_all_is_had_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    async def run() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        store = await harness.open()
        part = (await store.partitions())[1]
        await part.lead(MAINTENANCE, "other", 1_000)
        leadership = await store.lead(MAINTENANCE, "me", 60_000)
        assert (leadership.held, leadership.owner) == (False, "other")
        assert await _owners(store) == [None, "other", None]
        harness.clock.advance(1_001)
        mine = await store.lead(MAINTENANCE, "me", 60_000)
        assert mine.held
        assert (await store.promote(mine.epoch)).count == 0
        await part.lead(MAINTENANCE, "me", 0)
        await part.lead(MAINTENANCE, "another", 60_000)
        with pytest.raises(StaleEpoch):
            await store.promote(mine.epoch)
        await store.close()

    asyncio.run(run())


def _table(url: str) -> list[PartitionRow]:
    async def read() -> list[PartitionRow]:
        store = open_store(url)
        try:
            return await partition_table(store)
        finally:
            await store.close()

    return asyncio.run(read())


def _owned_by(url: str, workers: int) -> list[PartitionRow]:
    rows = _table(url)
    owners = {row.owner for row in rows}
    return rows if None not in owners and len(owners) == workers else []


def test_a_killed_owner_is_replaced_and_its_old_epoch_is_refused(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    app = "tests.worker.apps.jobs:app"
    with run_worker(app, url) as one, run_worker(app, url) as two:
        before = eventually(lambda: _owned_by(url, 2), 30)
        lost = before[0]
        [victim] = [worker for worker in (one, two) if str(worker.pid) in str(lost.owner)]
        victim.kill_all()
        after = eventually(lambda: _owned_by(url, 1), 30)
        assert after[0].owner != lost.owner
        assert (after[0].epoch or 0) > (lost.epoch or 0)
        asyncio.run(_expect_refusals(url, lost.epoch or 0))


async def _expect_refusals(url: str, epoch: int) -> None:
    store = open_store(url)
    part = (await store.partitions())[0]
    with pytest.raises(StaleEpoch):
        await part.promote(epoch)
    with pytest.raises(StaleEpoch):
        await part.prune(epoch, Retention())
    change = lifecycle.expire_lease("0" * 32, "1.1.feed", attempt=1, policy=DEFAULT_POLICY, epoch=epoch)
    assert await part.apply([change]) == [Verdict(False, reason="stale_epoch")]
    await store.close()
