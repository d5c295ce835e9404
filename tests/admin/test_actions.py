from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.admin import actions
from holdfast.admin.actions import Pace
from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Verdict
from holdfast.errors import BadOption
from holdfast.stores.contract import Store
from holdfast.stores.decorate import PassingStore
from tests.cli.conftest import CommandLine


class FakeTime:
    """A clock that stands still unless somebody sleeps."""

    def __init__(self) -> None:
        self.slept_ms = 0.0

    def now_ms(self) -> int:
        return int(self.slept_ms)

    def monotonic_ms(self) -> int:
        return int(self.slept_ms)

    async def sleep(self, seconds: float) -> None:
        self.slept_ms += seconds * 1000


@pytest.mark.parametrize(("rate", "count"), [(10.0, 30), (0.5, 4), (1000.0, 5_000)])
def test_a_pace_keeps_to_its_rate(rate: float, count: int) -> None:
    time = FakeTime()
    pace = Pace(rate, time, time.sleep)

    async def change_all() -> None:
        left = count
        while left:
            batch = min(left, pace.batch)
            await pace.before(batch)
            left -= batch

    asyncio.run(change_all())
    least_ms = (count - pace.batch) / rate * 1000
    assert least_ms - 5 <= time.slept_ms <= least_ms * 1.1 + 5


def test_without_a_rate_nobody_waits() -> None:
    time = FakeTime()
    asyncio.run(Pace(None, time, time.sleep).before(1_000))
    assert time.slept_ms == 0


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(BadOption, match="rate"):
        Pace(rate)


def test_in_bulk_meets_each_task_once_and_tells_how_far_it_is(cli: CommandLine) -> None:
    cli.dead_letters(25)
    told: list[int] = []

    async def replay(store: Store) -> actions.BulkResult:
        pace = Pace(100.0, time := FakeTime(), time.sleep)
        query = actions.dead_letters()
        return await actions.in_bulk(store, query, lifecycle.replay, limit=100, pace=pace, progress=told.append)

    assert cli.store(replay) == actions.BulkResult(25, 25)
    assert told == [10, 20, 25]


def test_a_pace_does_not_make_up_for_the_time_in_which_nothing_was_asked() -> None:
    time = FakeTime()
    pace = Pace(10.0, time, time.sleep)

    async def change() -> None:
        await pace.before(1)
        time.slept_ms += 10_000
        for _ in range(20):
            await pace.before(1)

    asyncio.run(change())
    assert time.slept_ms == 10_000 + 19 * 100


class Overtaken(PassingStore):
    """Another operator is faster with the first of each batch."""

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        await self.inner.apply([lifecycle.replay(changes[0].task_id)])
        return await self.inner.apply(changes)


def test_in_bulk_counts_what_it_has_changed_itself(cli: CommandLine) -> None:
    cli.dead_letters(5)

    async def replay(store: Store) -> actions.BulkResult:
        found = actions.dead_letters()
        return await actions.in_bulk(Overtaken(store), found, lifecycle.replay, limit=100, pace=Pace(None))

    assert cli.store(replay) == actions.BulkResult(5, 4)
