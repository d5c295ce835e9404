"""The observed store keeps every promise of the contract, and counts what goes through it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import lifecycle
from holdfast.errors import StoreUnavailable
from holdfast.observe.exposition import _cumulative
from holdfast.observe.metrics import (
    CLAIMS_LOST,
    SETTLEMENTS_REFUSED,
    STORE_ERRORS,
    STORE_SECONDS,
    TASKS_ENQUEUED,
    Metric,
    Tally,
)
from holdfast.observe.observed_store import Leaderships, ObservedStore
from holdfast.stores.capabilities import Capabilities
from holdfast.stores.contract import MAINTENANCE, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.testing.kit.conformance import CASES, Case, run_case
from holdfast.testing.kit.faulty import Faults, FaultyStore
from holdfast.testing.kit.harness import DecoratedHarness, SqliteHarness, StoreHarness
from holdfast.testing.kit.kit import Kit, ack, retry
from tests.sharded.harness import ShardedSqliteHarness
from tests.stores.sampling import sampled


def observed_sqlite(directory: Path) -> StoreHarness:
    return DecoratedHarness(SqliteHarness(directory), lambda store, _clock: ObservedStore(store, Tally()))


@pytest.mark.parametrize("case", sampled(CASES))
def test_promise_is_kept(case: Case, tmp_path: Path) -> None:
    asyncio.run(run_case(case, lambda: observed_sqlite(tmp_path)))


@pytest.mark.parametrize("case", sampled(CASES, 16, first=4))
def test_promise_is_kept_over_partitions(case: Case, tmp_path: Path) -> None:
    def harness() -> StoreHarness:
        return DecoratedHarness(ShardedSqliteHarness(tmp_path), lambda store, _clock: ObservedStore(store, Tally()))

    asyncio.run(run_case(case, harness))


def counted(tally: Tally, metric: Metric, *labels: str) -> int:
    return tally.cell(metric, *labels)[0]


def with_kit(tmp_path: Path, scenario: Any, faults: Faults | None = None) -> Tally:
    tally = Tally()

    def decorate(store: Store, _clock: Any) -> Store:
        return ObservedStore(FaultyStore(store, faults) if faults else store, tally)

    async def run() -> None:
        harness = DecoratedHarness(SqliteHarness(tmp_path), decorate)
        kit = Kit(harness, await harness.open())
        try:
            await kit.begin()
            step: Coroutine[Any, Any, None] = scenario(kit)
            await step
        finally:
            await kit.close()

    asyncio.run(run())
    return tally


def test_new_tasks_are_counted_once(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        task = kit.new_task(queue="mails")
        await kit.add(task)
        await kit.add(task)
        await kit.enqueue(3)

    tally = with_kit(tmp_path, scenario)
    assert counted(tally, TASKS_ENQUEUED, "mails", "kit.work") == 1
    assert counted(tally, TASKS_ENQUEUED, "default", "kit.work") == 3
    assert sum(tally.cell(STORE_SECONDS, "enqueue")[:-1]) == 3


def test_a_stale_settlement_is_counted_and_a_repeated_one_is_not(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        claim = await kit.claim()
        await kit.apply(ack(claim))
        await kit.apply(ack(claim))
        await kit.apply(lifecycle.ack(claim.task_id, "1.1.foreign"))
        await kit.store.reserve(kit.request(0), [lifecycle.release(claim.task_id, "1.1.foreign")])

    tally = with_kit(tmp_path, scenario)
    assert counted(tally, SETTLEMENTS_REFUSED, "ack", "stale_claim") == 1
    assert counted(tally, SETTLEMENTS_REFUSED, "release", "stale_claim") == 1


def test_claims_that_are_taken_away_are_counted(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        expiring = await kit.claim()
        kit.clock.advance(60_000)
        await kit.requeue_expired()
        lost = await kit.claim(queue="other")
        await kit.apply(
            lifecycle.lose(lost.task_id, lost.token, "worker_lost", attempt=lost.attempt, policy=lost.policy)
        )
        assert expiring.task_id != lost.task_id

    tally = with_kit(tmp_path, scenario)
    assert (counted(tally, CLAIMS_LOST, "lease_expired"), counted(tally, CLAIMS_LOST, "worker_lost")) == (1, 1)


def test_a_claim_tells_since_when_its_task_was_ready(tmp_path: Path) -> None:
    """The wait that is counted: without a delay that was asked for, and without the backoff after a failure."""
    waits: list[int] = []

    async def scenario(kit: Kit) -> None:
        await kit.add(kit.new_task(delay_ms=3_600_000))
        for wait_ms in (3_600_000, 60_000):
            kit.clock.advance(wait_ms + 2_000)
            await kit.promote()
            claim = await kit.reserve_one()
            waits.append(claim.claimed_at_ms - claim.ready_at_ms)
            await kit.apply(retry(claim, delay_ms=60_000))

    with_kit(tmp_path, scenario)
    assert waits == [2_000, 2_000]


def test_errors_are_counted_by_their_class(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        with pytest.raises(StoreUnavailable):
            await kit.store.counts()

    tally = with_kit(tmp_path, scenario, Faults(lost_calls=1.0))
    assert counted(tally, STORE_ERRORS, "counts", "StoreUnavailable") == 1
    assert sum(tally.cell(STORE_SECONDS, "counts")) == 0


def test_what_only_one_engine_can_do_is_passed_on() -> None:
    inner = PassingStore(open_store("sqlite://"))
    inner.capabilities = Capabilities(completion=lambda task_id, token, rest_ms: "its own")
    store = ObservedStore(inner, Tally())
    assert store.capabilities == inner.capabilities
    asyncio.run(store.close())


def test_it_knows_whether_this_process_does_the_upkeep(tmp_path: Path) -> None:
    leaderships = Leaderships()

    async def run() -> list[int]:
        harness = SqliteHarness(tmp_path)
        ours = ObservedStore(await harness.open(), Tally(), leaderships)
        await ours.migrate()
        held = [leaderships.held()]
        for owner, ttl_ms in (("we", 10_000), ("they", 10_000), ("we", 0)):
            await ours.lead(MAINTENANCE, owner, ttl_ms)
            held.append(leaderships.held())
        await ours.close()
        return held

    assert asyncio.run(run()) == [0, 1, 0, 0]


def test_of_a_batch_only_what_was_refused_or_lost_is_counted(tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.enqueue(2)
        good, other = await kit.reserve(2)
        await kit.store.apply([ack(good), lifecycle.release(other.task_id, "1.1.foreign")])

    tally = with_kit(tmp_path, scenario)
    counts = {(metric, labels): cell[0] for metric, labels, cell in tally if cell[0]}
    assert {labels: count for (metric, labels), count in counts.items() if metric is SETTLEMENTS_REFUSED} == {
        ("release", "stale_claim"): 1
    }
    assert not [labels for metric, labels in counts if metric is CLAIMS_LOST]


def test_buckets_are_cumulative() -> None:
    numbers = [1] * (len(STORE_SECONDS.buckets) + 1)
    assert [count for _, count in _cumulative(STORE_SECONDS, numbers)] == list(range(1, len(numbers) + 1))
