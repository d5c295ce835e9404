"""The store behind a bad line: it loses what it says it loses, repeatably, and repeats with the same ids heal it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.core.task import State
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.testing.kit.faulty import Faults, FaultyStore
from holdfast.testing.kit.harness import SqliteHarness
from holdfast.testing.kit.kit import Kit, ack

Answer = TypeVar("Answer")


async def _insist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Makes the same call until a reply arrives."""
    for _ in range(200):
        try:
            return await call()
        except StoreUnavailable:
            continue
    raise AssertionError("no reply in 200 calls")


def _kit(tmp_path: Path, faults: Faults) -> tuple[Kit, FaultyStore, Store]:
    harness = SqliteHarness(tmp_path)
    inner = asyncio.run(harness.open())
    faulty = FaultyStore(inner, faults)
    return Kit(harness, faulty), faulty, inner


def test_lost_call_never_reaches_the_store(tmp_path: Path) -> None:
    kit, faulty, inner = _kit(tmp_path, Faults(lost_calls=1.0))

    async def run() -> None:
        with pytest.raises(StoreUnavailable):
            await kit.enqueue()
        assert await inner.counts() == []
        assert faulty.struck["lost_calls"] == 1
        await kit.close()

    asyncio.run(run())


def test_lost_reply_was_done(tmp_path: Path) -> None:
    kit, _, inner = _kit(tmp_path, Faults(lost_replies=1.0))

    async def run() -> None:
        with pytest.raises(StoreUnavailable):
            await kit.enqueue()
        [counts] = await inner.counts()
        assert counts.states[State.READY] == 1
        await kit.close()

    asyncio.run(run())


def test_delays_are_drawn_up_to_the_longest(tmp_path: Path) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def run() -> None:
        inner = await SqliteHarness(tmp_path).open()
        store = FaultyStore(inner, Faults(delays=1.0, longest_delay_ms=40), sleep)
        for _ in range(20):
            await store.counts()
        await store.close()

    asyncio.run(run())
    assert len(slept) == 20
    assert all(0 <= seconds <= 0.04 for seconds in slept)


def test_same_seed_same_faults(tmp_path: Path) -> None:
    async def pattern(directory: Path, seed: int) -> list[bool]:
        directory.mkdir()
        inner = await SqliteHarness(directory).open()
        store = FaultyStore(inner, Faults(seed=seed, lost_calls=0.3, lost_replies=0.3))
        lost = []
        for _ in range(40):
            try:
                await store.counts()
                lost.append(False)
            except StoreUnavailable:
                lost.append(True)
        await store.close()
        return lost

    first = asyncio.run(pattern(tmp_path / "a", 7))
    assert first == asyncio.run(pattern(tmp_path / "b", 7))
    assert first != asyncio.run(pattern(tmp_path / "c", 8))
    assert 0 < sum(first) < 40


@pytest.mark.parametrize("seed", range(5))
def test_repeats_with_the_same_ids_lose_nothing_and_double_nothing(tmp_path: Path, seed: int) -> None:
    kit, faulty, _ = _kit(tmp_path, Faults(seed=seed, lost_calls=0.3, lost_replies=0.3))

    async def run() -> None:
        tasks = [kit.new_task() for _ in range(30)]
        for task in tasks:
            await _insist(partial(kit.store.enqueue, [task]))
        done = 0
        while done < 30:
            request = kit.request(4)
            reserved = await _insist(partial(kit.store.reserve, request))
            changes = [ack(claim) for claim in reserved.tasks]
            verdicts = await _insist(partial(kit.store.apply, changes))
            assert all(verdict.applied for verdict in verdicts)
            done += len(reserved.tasks)
        faulty.strike(False)
        assert (await kit.counts()).states == {State.SUCCEEDED: 30}
        records = await kit.store.get([task.task_id for task in tasks])
        assert all(record and record.deliveries == 1 for record in records)
        assert faulty.struck["lost_replies"] > 0
        await kit.close()

    asyncio.run(run())
