"""How a place is kept filled: with children that are told what to do instead of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.testing.clock import SteppedClock
from holdfast.worker.backoff import Backoff
from holdfast.worker.messages import Quiet
from holdfast.worker.seats import MAX_LEAVING, Life, Seat


@dataclass
class FakeChild:
    """What a seat sees of a child."""

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
    """One seat, and the lives in it, each of which begins and ends when the test says so."""

    def __init__(self, **options: Any) -> None:
        self.lives: list[Life] = []
        self._ends: dict[Life, asyncio.Event] = {}
        self._error: Exception | None = None
        self.clock = SteppedClock()
        backoff = Backoff(base_ms=20, cap_ms=20, draw=lambda: 0.0)
        self.seat = Seat(1, self._live, self.clock, backoff=backoff, **options)
        self.keeping = asyncio.create_task(self.seat.keep())

    async def _live(self, seat: Seat, life: Life) -> None:
        assert seat is self.seat
        life.child = FakeChild()  # type: ignore[assignment]
        self.lives.append(life)
        self._ends[life] = asyncio.Event()
        await self._ends[life].wait()
        if self._error is not None:
            raise self._error

    def child(self, number: int) -> Any:
        return self.lives[number].child

    async def begin(self, number: int) -> None:
        await self.until(lambda: len(self.lives) > number)
        self.child(number).serving = True
        self.seat.tell()
        await self.settle()

    async def end(self, number: int, how: str = "was killed by SIGKILL", *, unusable: bool = False) -> None:
        await self.until(lambda: len(self.lives) > number)
        self.lives[number].how_it_ended = how
        self.child(number).drained = how == "exited with code 0"
        self.lives[number].unusable = unusable
        self._ends[self.lives[number]].set()
        await self.settle()

    async def break_down(self, number: int, error: Exception) -> None:
        self._error = error
        await self.end(number)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def settled(self) -> bool:
        return self.seat.settled

    async def close(self) -> None:
        self.seat.close()
        for life in self.lives:
            self._ends[life].set()
        await asyncio.wait_for(self.keeping, 5)


def on_stage(scenario: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    async def play() -> None:
        stage = Stage(**options)
        await stage.settle()
        await scenario(stage)
        if not stage.keeping.done():
            await stage.close()

    asyncio.run(play())


def test_a_worn_child_is_told_to_leave_only_when_its_successor_serves() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.seat.wear_out(stage.lives[0], "has run 10 tasks")
        await stage.until(lambda: len(stage.lives) == 2)
        assert not stage.child(0).quiet
        await stage.begin(1)
        assert stage.child(0).quiet
        assert not stage.settled()
        await stage.end(0, "exited with code 0")
        assert stage.settled()
        assert len(stage.lives) == 2
        assert not stage.lives[1].slow_start

    on_stage(scenario)


def test_there_is_never_more_than_one_successor_under_way() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        for _ in range(5):
            stage.seat.wear_out(stage.lives[0], "is old")
            await stage.settle()
        assert len(stage.lives) == 2
        stage.seat.replace("the source has changed")  # while one is starting: it may have read the old source
        await stage.settle()
        assert len(stage.lives) == 2
        await stage.begin(1)
        await stage.begin(2)
        assert (stage.child(0).quiet, stage.child(1).quiet, stage.child(2).quiet) == (True, True, False)

    on_stage(scenario)


def test_when_the_successor_cannot_start_the_old_child_goes_on_and_it_is_tried_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.seat.wear_out(stage.lives[0], "is old")
        await stage.end(1, "exited with code 2", unusable=True)
        assert not stage.child(0).quiet
        await stage.begin(2)
        assert stage.child(0).quiet

    on_stage(scenario)


def test_while_the_source_is_broken_the_next_change_is_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.end(0, "exited with code 2", unusable=True)
        await asyncio.sleep(0.1)  # several times the backoff
        assert len(stage.lives) == 1
        stage.seat.replace("the source has changed")
        await stage.begin(1)
        stage.seat.replace("the source has changed")
        await stage.end(2, "exited with code 2", unusable=True)
        await asyncio.sleep(0.1)
        assert len(stage.lives) == 3
        assert stage.seat.serving is stage.lives[1]
        assert not stage.child(1).quiet

    on_stage(scenario, wait_for_change=True)


def test_a_crashed_child_is_followed_by_one_that_starts_slowly() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        await stage.end(0)
        await stage.begin(1)
        assert stage.lives[1].slow_start
        await stage.end(1)
        assert len(stage.lives) == 2  # it waits a little now
        await stage.begin(2)

    on_stage(scenario)


@pytest.mark.parametrize("why", ["condemned", "over its memory"])
def test_a_child_that_was_made_to_end_is_followed_at_once_and_at_full_speed(why: str) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        await stage.end(0)  # so that the next crash would have to wait
        await stage.begin(1)
        stage.child(1).dismissed = why == "condemned"
        await stage.end(1, "was killed by SIGKILL" if why == "condemned" else "exited with code 0")
        assert len(stage.lives) == 3
        assert not stage.lives[2].slow_start

    on_stage(scenario)


def test_when_a_child_dies_while_its_successor_starts_that_one_takes_over() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.seat.wear_out(stage.lives[0], "is old")
        await stage.until(lambda: len(stage.lives) == 2)
        await stage.end(0)
        assert len(stage.lives) == 2
        await stage.begin(1)
        assert stage.settled()

    on_stage(scenario)


def test_old_children_that_do_not_finish_do_not_pile_up() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        for number in range(MAX_LEAVING):
            stage.seat.wear_out(stage.lives[number], "is old")
            await stage.begin(number + 1)
        stage.seat.wear_out(stage.lives[MAX_LEAVING], "is old")
        await stage.settle()
        assert len(stage.lives) == MAX_LEAVING + 1
        await stage.end(0, "exited with code 0")
        await stage.begin(MAX_LEAVING + 1)

    on_stage(scenario)


def test_a_closed_seat_starts_nobody_and_kills_who_has_not_begun() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        stage.seat.wear_out(stage.lives[0], "is old")
        await stage.until(lambda: len(stage.lives) == 2)
        stage.seat.close()
        assert (stage.child(0).killed, stage.child(1).killed) == (False, True)
        await stage.end(1)
        assert not stage.keeping.done()
        await stage.end(0, "exited with code 0")
        await asyncio.wait_for(stage.keeping, 5)
        assert len(stage.lives) == 2

    on_stage(scenario)


def test_an_error_in_the_life_of_a_child_is_not_swallowed() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.begin(0)
        await stage.break_down(0, RuntimeError("a bug"))
        with pytest.raises(RuntimeError, match="a bug"):
            await stage.keeping

    on_stage(scenario)
