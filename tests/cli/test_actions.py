from __future__ import annotations

import asyncio

import pytest

from holdfast.admin import actions
from holdfast.admin.actions import Pace
from holdfast.core import lifecycle
from holdfast.errors import BadOption
from holdfast.stores.contract import Store
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
