"""How a slot is kept filled: with fake children instead of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.testing.clock import SteppedClock
from holdfast.worker.backoff import Backoff
from holdfast.worker.protocol import Quiet
from holdfast.worker.supervisor.slot import MAX_LEAVING, ChildSlot, Incarnation


@dataclass
class FakeChild:
    """What a slot sees of a child."""

    serving: bool = False
    drained: bool = False
    dismissed: bool = False
    killed: bool = False
    heard: list[Any] = field(default_factory=list)

    def send(self, message: Any) -> None:
        self.heard.append(message)

    def kill(self) -> None:
        self.killed = True

    @property
    def quiet(self) -> bool:
        return Quiet() in self.heard


class Stage:
    """One slot, and its incarnations, each of which begins and ends when the test says so."""

    def __init__(self, **options: Any) -> None:
        self.incarnations: list[Incarnation] = []
        self.gone: set[int] = set()
        self.clock = SteppedClock()
        #: How many restarts were put off.
        self.put_off = 0
        backoff = Backoff(base_ms=20, cap_ms=20, draw=self._draw)
        self.slot = ChildSlot(1, self.clock, backoff=backoff, **options)
        self.filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        async for incarnation in self.slot:
            incarnation.child = FakeChild()  # type: ignore[assignment]
            self.incarnations.append(incarnation)

    def _draw(self) -> float:
        self.put_off += 1
        return 0.0

    def child(self, number: int) -> Any:
        return self.incarnations[number].child

    async def begin(self, number: int) -> None:
        await self.until(lambda: len(self.incarnations) > number)
        self.child(number).serving = True
        self.slot.notify()
        await self.settle()

    async def end(self, number: int, how: str = "was killed by SIGKILL", *, unusable: bool = False) -> None:
        await self.until(lambda: len(self.incarnations) > number)
        self.incarnations[number].how_it_ended = how
        self.child(number).drained = how == "exited with code 0"
        self.incarnations[number].unusable = unusable
        self.slot.ended(self.incarnations[number])
        self.gone.add(number)
        await self.settle()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def steady(self) -> bool:
        return self.slot.steady

    async def close(self) -> None:
        self.slot.close()
        for number, incarnation in enumerate(self.incarnations):
            if number not in self.gone:
                self.slot.ended(incarnation)
        await asyncio.wait_for(self.filling, 5)


def on_stage(scenario: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    async def play() -> None:
        stage = Stage(**options)
        await stage.settle()
        await scenario(stage)
        if not stage.filling.done():
            await stage.close()

    asyncio.run(play())


def test_a_recycled_child_is_told_to_leave_only_when_its_successor_serves() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.slot.recycle(stage.incarnations[0], "has run 10 tasks")
        await stage.until(lambda: len(stage.incarnations) == 2)
        assert not stage.child(0).quiet
        await stage.begin(1)
        assert stage.child(0).quiet
        assert not stage.steady()
        await stage.end(0, "exited with code 0")
        assert stage.steady()
        assert len(stage.incarnations) == 2
        assert not stage.incarnations[1].slow_start

    on_stage(scenario)


def test_there_is_never_more_than_one_successor_under_way() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        for _ in range(5):
            stage.slot.recycle(stage.incarnations[0], "is old")
            await stage.settle()
        assert len(stage.incarnations) == 2
        stage.slot.replace("the source has changed")  # while one is starting: it may have read the old source
        await stage.settle()
        assert len(stage.incarnations) == 2
        await stage.begin(1)
        await stage.begin(2)
        assert (stage.child(0).quiet, stage.child(1).quiet, stage.child(2).quiet) == (True, True, False)

    on_stage(scenario)


def test_when_the_successor_cannot_start_the_old_child_goes_on_and_it_is_tried_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.slot.recycle(stage.incarnations[0], "is old")
        await stage.end(1, "exited with code 2", unusable=True)
        assert not stage.child(0).quiet
        await stage.begin(2)
        assert stage.child(0).quiet

    on_stage(scenario)


def test_while_the_source_is_broken_the_next_change_is_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.end(0, "exited with code 2", unusable=True)
        assert (len(stage.incarnations), stage.put_off) == (1, 0)
        stage.slot.replace("the source has changed")
        await stage.begin(1)
        stage.slot.replace("the source has changed")
        await stage.end(2, "exited with code 2", unusable=True)
        assert (len(stage.incarnations), stage.put_off) == (3, 0)
        assert stage.slot.serving is stage.incarnations[1]
        assert not stage.child(1).quiet

    on_stage(scenario, wait_for_change=True)


def test_a_crashed_child_is_followed_by_one_that_starts_slowly() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        await stage.end(0)
        await stage.begin(1)
        assert stage.incarnations[1].slow_start
        await stage.end(1)
        assert len(stage.incarnations) == 2  # it waits a little now
        await stage.begin(2)

    on_stage(scenario)


@pytest.mark.parametrize("why", ["killed on purpose", "over its memory"])
def test_a_child_that_was_made_to_end_is_followed_at_once_and_at_full_speed(why: str) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        await stage.end(0)  # so that the next crash would have to wait
        await stage.begin(1)
        stage.child(1).dismissed = why == "killed on purpose"
        await stage.end(1, "was killed by SIGKILL" if why == "killed on purpose" else "exited with code 0")
        assert len(stage.incarnations) == 3
        assert not stage.incarnations[2].slow_start

    on_stage(scenario)


def test_when_a_child_dies_while_its_successor_starts_that_one_takes_over() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.slot.recycle(stage.incarnations[0], "is old")
        await stage.until(lambda: len(stage.incarnations) == 2)
        await stage.end(0)
        assert len(stage.incarnations) == 2
        await stage.begin(1)
        assert stage.steady()

    on_stage(scenario)


def test_old_children_that_do_not_finish_do_not_pile_up() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        for number in range(MAX_LEAVING):
            stage.slot.recycle(stage.incarnations[number], "is old")
            await stage.begin(number + 1)
        stage.slot.recycle(stage.incarnations[MAX_LEAVING], "is old")
        await stage.settle()
        assert len(stage.incarnations) == MAX_LEAVING + 1
        await stage.end(0, "exited with code 0")
        await stage.begin(MAX_LEAVING + 1)

    on_stage(scenario)


def test_a_closed_slot_starts_no_child_and_kills_one_that_does_not_serve_yet() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.slot.recycle(stage.incarnations[0], "is old")
        await stage.until(lambda: len(stage.incarnations) == 2)
        stage.slot.close()
        assert (stage.child(0).killed, stage.child(1).killed) == (False, True)
        await stage.end(1)
        assert not stage.filling.done()
        await stage.end(0, "exited with code 0")
        await asyncio.wait_for(stage.filling, 5)
        assert len(stage.incarnations) == 2

    on_stage(scenario)
