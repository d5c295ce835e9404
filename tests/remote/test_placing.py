"""Ids that carry the partition of the store behind the server, by a map that is kept up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.core.partitions import PartitionMap, first_map
from holdfast.errors import StoreUnavailable
from holdfast.stores.remote.store import Placing
from holdfast.testing.clock import SteppedClock

TWO = first_map(("", "")).with_spread("hot", 2)


class Server:
    """Gives out maps, and counts how often."""

    def __init__(self, current: PartitionMap) -> None:
        self.current = current
        self.asked = 0
        self.away = False

    async def partition_map(self) -> PartitionMap:
        self.asked += 1
        if self.away:
            raise StoreUnavailable("away")
        return self.current


def placed(placing: Placing, queue: str, count: int) -> set[int]:
    return {placing.place(queue, None) for _ in range(count)}


def run(check: Callable[[Server, Placing, SteppedClock], Awaitable[None]], current: PartitionMap = TWO) -> None:
    clock, server = SteppedClock(), Server(current)
    asyncio.run(check(server, Placing(server.partition_map, clock), clock))  # type: ignore[arg-type]


def test_new_tasks_are_spread_and_repeats_meet() -> None:
    async def check(server: Server, placing: Placing, clock: SteppedClock) -> None:
        await placing.learn()
        assert placed(placing, "hot", 10) == {0, 1}
        assert {placing.place("hot", "order-42") for _ in range(10)} == {TWO.partitions("hot")[0]}
        await placing.learn()
        assert server.asked == 1

    run(check)


def test_a_changed_map_is_heard_of() -> None:
    async def check(server: Server, placing: Placing, clock: SteppedClock) -> None:
        await placing.learn()
        server.current = TWO.with_spread("cold", 2)
        await placing.keep_up()
        assert len(placed(placing, "cold", 10)) == 1
        clock.advance(31_000)
        assert placing.is_old
        await placing.keep_up()
        assert placed(placing, "cold", 10) == {0, 1}
        assert not placing.is_old

    run(check)


def test_an_outage_leaves_the_map_as_it_was() -> None:
    async def check(server: Server, placing: Placing, clock: SteppedClock) -> None:
        await placing.learn()
        server.away = True
        clock.advance(31_000)
        await placing.keep_up()
        assert placed(placing, "hot", 10) == {0, 1}

    run(check)


def test_of_one_partition_nobody_asks_again_unless_the_server_refuses_it() -> None:
    async def check(server: Server, placing: Placing, clock: SteppedClock) -> None:
        await placing.learn()
        server.current = TWO
        clock.advance(31_000)
        assert not placing.is_old
        await placing.keep_up()
        assert placed(placing, "hot", 10) == {0}
        await placing.keep_up(refused=True)
        assert placed(placing, "hot", 10) == {0, 1}

    run(check, PartitionMap())


def test_the_first_map_must_be_there() -> None:
    async def check(server: Server, placing: Placing, clock: SteppedClock) -> None:
        server.away = True
        with pytest.raises(StoreUnavailable):
            await placing.learn()

    run(check)
