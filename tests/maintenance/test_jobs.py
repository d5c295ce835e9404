"""Each job by itself: what it does in one portion, and when it comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from holdfast.core.lifecycle import Change, Event, Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Hold, State
from holdfast.errors import StoreUnavailable
from holdfast.maintenance import balance, promoter, pruner, reaper, service
from holdfast.maintenance.balance import Balance
from holdfast.maintenance.promoter import Promoter
from holdfast.maintenance.pruner import Pruner
from holdfast.maintenance.reaper import Reaper
from holdfast.maintenance.service import Maintenance
from holdfast.stores.contract import Leadership, Promoted, Retention, Store, WorkerRecord
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.testing.kit.harness import SqliteMemoryHarness
from holdfast.testing.kit.kit import LEASE_MS, Kit, ack


def with_kit(scenario: Callable[[Kit], Awaitable[None]]) -> None:
    async def run() -> None:
        harness = SqliteMemoryHarness()
        kit = Kit(harness, await harness.open())
        try:
            await kit.begin()
            await scenario(kit)
        finally:
            await kit.close()

    asyncio.run(run())


class Noted(PassingStore):
    """Keeps the changes that it was given, and renews a lease between the look for expired ones and them."""

    def __init__(self, inner: Store, renewed: Sequence[Hold] = ()) -> None:
        super().__init__(inner)
        self.changes: list[Change] = []
        self._renewed = renewed

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        await self.inner.extend(self._renewed, LEASE_MS)
        self.changes += changes
        return await self.inner.apply(changes)


# -- leases --------------------------------------------------------------------------------------------------


def test_the_reaper_goes_on_at_once_while_batches_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "_BATCH", 2)

    async def scenario(kit: Kit) -> None:
        await kit.enqueue(5)
        assert len(await kit.reserve(5)) == 5
        kit.clock.advance(LEASE_MS + 1)
        epoch = await kit.leader_epoch()
        pauses_ms = [await Reaper().run_once(kit.store, epoch) for _ in range(3)]
        assert pauses_ms == [0, 0, reaper._INTERVAL_MS]
        assert (await kit.counts()).states == {State.READY: 5}

    with_kit(scenario)


def test_the_reaper_takes_nothing_away_in_another_epoch() -> None:
    async def scenario(kit: Kit) -> None:
        claim = await kit.claim()
        kit.clock.advance(LEASE_MS + 1)
        epoch = await kit.leader_epoch()
        store = Noted(kit.store)
        await Reaper().run_once(store, epoch)
        assert [(change.event, change.epoch, change.expired_only) for change in store.changes] == [
            (Event.REQUEUE, epoch, True)
        ]
        assert await kit.state(claim.task_id) is State.READY

    with_kit(scenario)


def test_only_claims_that_were_taken_away_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.enqueue(3)
        renewed, *others = await kit.reserve(3)
        kit.clock.advance(LEASE_MS + 1)
        store = Noted(kit.store, [Hold(renewed.task_id, renewed.token)])
        await Reaper().run_once(store, await kit.leader_epoch())
        assert "took 2 claims away from worker-1" in caplog.text
        assert renewed.task_id not in caplog.text
        assert await kit.state(renewed.task_id) is State.CLAIMED
        assert [await kit.state(other.task_id) for other in others] == [State.READY, State.READY]

    with caplog.at_level(logging.WARNING):
        with_kit(scenario)


# -- deadlines, delays, retention ----------------------------------------------------------------------------


def test_the_reaper_cancels_unstarted_tasks_at_once_while_batches_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "_BATCH", 2)

    async def scenario(kit: Kit) -> None:
        await kit.enqueue(5, policy=RunPolicy(expires_ms=1_000))
        kit.clock.advance(1_001)
        epoch = await kit.leader_epoch()
        store = Noted(kit.store)
        pauses_ms = [await Reaper().run_once(store, epoch) for _ in range(3)]
        assert pauses_ms == [0, 0, reaper._INTERVAL_MS]
        assert {(change.event, change.epoch) for change in store.changes} == {(Event.EXPIRE, epoch)}
        assert (await kit.counts()).states == {State.CANCELLED: 5}

    with_kit(scenario)


def test_the_promoter_comes_back_when_the_next_task_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promoter, "_BATCH", 2)

    async def scenario(kit: Kit) -> None:
        await kit.enqueue(3, delay_ms=100)
        await kit.enqueue(1, delay_ms=350)
        await kit.enqueue(1, delay_ms=100_000)
        epoch = await kit.leader_epoch()
        assert await Promoter().run_once(kit.store, epoch) == 100
        kit.clock.advance(100)
        assert [await Promoter().run_once(kit.store, epoch) for _ in range(2)] == [0, 250]
        kit.clock.advance(250)
        assert await Promoter().run_once(kit.store, epoch) == promoter._SAFETY_POLL_MS
        assert (await kit.counts()).states == {State.READY: 4, State.SCHEDULED: 1}

    with_kit(scenario)


def test_the_pruner_pauses_shortly_between_full_batches_and_long_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner, "_BATCH", 2)

    async def scenario(kit: Kit) -> None:
        for _ in range(3):
            await kit.apply(ack(await kit.claim(policy=RunPolicy(result_ttl_ms=1_000))))
        kit.clock.advance(1_001)
        epoch = await kit.leader_epoch()
        pauses_ms = [await Pruner(Retention()).run_once(kit.store, epoch) for _ in range(2)]
        assert pauses_ms == [pruner._PAUSE_BETWEEN_BATCHES_MS, pruner._INTERVAL_MS]
        assert (await kit.counts()).states == {}

    with_kit(scenario)


# -- partitions ----------------------------------------------------------------------------------------------


class Workers(PassingStore):
    """A store in which some workers live, and others were heard of."""

    def __init__(self, alive: int, silent: int = 0) -> None:
        super().__init__(open_store("sqlite://"))
        plain = WorkerRecord(
            worker_id="w",
            host="here",
            pid=1,
            version="0",
            queues=("q",),
            types=("t",),
            processes=1,
            concurrency=1,
            running=0,
        )
        self._workers = [replace(plain, worker_id=str(n), alive=n < alive) for n in range(alive + silent)]
        self.away = False

    async def workers(self) -> list[WorkerRecord]:
        if self.away:
            raise StoreUnavailable("away")
        return self._workers


async def shares(store: Workers, partitions: int, mine: int) -> list[bool]:
    """Whether a process that looks after the first so many of the partitions gives away each of them in turn."""
    sharing = Balance(store, partitions, lambda: 0.5)
    for partition in range(mine):
        await sharing.give_way(partition)
    return [await sharing.gives_away(partition) for partition in range(mine)]


@pytest.mark.parametrize(
    ("partitions", "alive", "mine", "given_away"),
    [
        (4, 2, 2, 0),
        (4, 2, 4, 2),
        (5, 2, 3, 0),  # one of the two has the third
        (5, 2, 4, 1),
        (5, 3, 2, 0),
        (7, 3, 3, 0),
        (3, 0, 3, 0),  # no process is known yet, not even this one
        (3, 100, 1, 0),
        (3, 100, 3, 2),
    ],
)
def test_a_process_gives_away_what_is_more_than_its_share(
    partitions: int, alive: int, mine: int, given_away: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "_GIVE_WAY_MS", 0)

    async def run() -> None:
        store = Workers(alive)
        assert sum(await shares(store, partitions, mine)) == given_away
        await store.close()

    asyncio.run(run())


def test_silent_workers_have_no_share_and_an_unknown_number_of_them_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balance, "_GIVE_WAY_MS", 0)

    async def run() -> None:
        store = Workers(alive=1, silent=3)
        assert not any(await shares(store, 4, 4))
        store.away = True
        assert not any(await shares(store, 4, 4))
        await store.close()

    asyncio.run(run())


def test_a_process_waits_longer_for_each_partition_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def run() -> None:
        store = open_store("sqlite://")
        sharing = Balance(store, 100, lambda: 0.5)
        for partition in range(20):
            await sharing.give_way(partition)
        assert waited[:3] == [0.2, 0.4, 0.6]
        assert max(waited) == 2.0
        waited.clear()
        for partition in range(20):
            sharing.without(partition)
        await sharing.give_way(0)
        assert waited == []
        await store.close()

    asyncio.run(run())


# -- leadership ----------------------------------------------------------------------------------------------


class Renewed(PassingStore):
    """Its leadership is in a new epoch after the first answer, as after a lease that ran out unnoticed."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.answers = 0
        self.epochs: list[int] = []
        self.new_epoch_seen = asyncio.Event()

    async def partitions(self) -> list[Store]:
        return [self]

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        self.answers += 1
        leadership = await self.inner.lead(name, owner, ttl_ms)
        return replace(leadership, epoch=leadership.epoch + 100) if self.answers > 1 else leadership

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        self.epochs.append(epoch)
        if epoch > 100:
            self.new_epoch_seen.set()
        return Promoted(0, None)


def test_a_leader_that_is_in_another_epoch_begins_anew_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Renewed all the time, and for long: on a busy machine too, the store itself has one epoch.
    monkeypatch.setattr(service, "LEADER_TTL_MS", 60_000)
    monkeypatch.setattr(service, "_RENEWALS_PER_TTL", 3_000)

    async def run() -> None:
        store = Renewed(open_store("sqlite://"))
        maintenance = asyncio.create_task(Maintenance(store, "me", Retention(), random_unit=lambda: 0.5).run())
        async with asyncio.timeout(20):
            await store.new_epoch_seen.wait()
        assert store.epochs[0] < 100
        maintenance.cancel()
        await asyncio.gather(maintenance, return_exceptions=True)
        await store.close()

    asyncio.run(run())
