"""The pool: its events, and the messages that it passes from child to child."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.testing.clock import SteppedClock
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import Drained, FromChild, Held, Hello, Look, ProgressReport, WakeupUnused
from holdfast.worker.supervisor.pool import (
    ChildGone,
    ChildPool,
    ChildReady,
    ChildServing,
    PoolEvent,
    ProgressReported,
    SlotFailed,
)
from holdfast.worker.supervisor.process import ChildProcess
from holdfast.worker.supervisor.slot import ChildSlot, Incarnation
from tests.worker.supervisor.fakes import FakeProcess, pool_of


class Scripted(FakeProcess):
    """A child that sends these messages and exits."""

    def __init__(self, *messages: FromChild) -> None:
        super().__init__()
        self._messages = messages

    async def until_gone(self, handle: Callable[[FromChild], None]) -> str:
        for message in self._messages:
            self.say(message)
            handle(message)
        self.drained = True
        return "exited with code 0"


def in_a_pool(scenario: Callable[[ChildPool], Awaitable[None]]) -> None:
    async def run() -> None:
        pool = ChildPool(WorkerOptions(app="no.such:app"), "w", SteppedClock())
        try:
            async with asyncio.timeout(20):
                await scenario(pool)
        finally:
            for task in pool.tasks:
                task.cancel()
            await asyncio.gather(*pool.tasks, return_exceptions=True)

    asyncio.run(run())


def starting(monkeypatch: pytest.MonkeyPatch, *children: FakeProcess | Exception) -> list[Any]:
    """Has the pool start these, one after the other; the list has those that are left."""
    left = list(children)

    async def start(*_: object) -> FakeProcess:
        child = left.pop(0)
        if isinstance(child, Exception):
            raise child
        return child

    monkeypatch.setattr(ChildProcess, "start", start)
    return left


async def events_until_gone(pool: ChildPool) -> list[PoolEvent]:
    events: list[PoolEvent] = []
    async for event in pool:
        events.append(event)
        if isinstance(event, ChildGone):
            break
    return events


def test_the_supervisor_gets_the_events_of_a_child_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    hello = Hello("sqlite:///x", 30_000, ())
    child = Scripted(hello, Held(1), ProgressReport({1: b"{}"}), Held(2), Drained(0))
    starting(monkeypatch, child)

    async def scenario(pool: ChildPool) -> None:
        pool.add_slots(1)
        ready, *others, gone = await events_until_gone(pool)
        assert isinstance(ready, ChildReady)
        assert (ready.child, ready.hello) == (child, hello)
        assert others == [ChildServing(), ProgressReported()]
        assert isinstance(gone, ChildGone)
        assert gone.incarnation.how_it_ended == "exited with code 0"

    in_a_pool(scenario)


def test_no_child_follows_in_a_slot_before_the_claims_of_the_last_one_are_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = starting(monkeypatch, Scripted(Held(1)), Scripted(Held(1)))

    async def scenario(pool: ChildPool) -> None:
        pool.add_slots(1)
        *_, gone = await events_until_gone(pool)
        assert isinstance(gone, ChildGone)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(left) == 1
        assert list(pool.children()) == [gone.child]  # its claims are renewed until they are settled
        gone.settled.set_result(3)
        await events_until_gone(pool)
        assert not left

    in_a_pool(scenario)


@pytest.mark.parametrize("where", ["start", "settlement"])
def test_an_error_in_a_slot_is_an_event_and_no_child_follows(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("a bug")
    left = starting(monkeypatch, error if where == "start" else Scripted(Held(1)), Scripted(Held(1)))

    async def scenario(pool: ChildPool) -> None:
        pool.add_slots(1)
        if where == "settlement":
            *_, gone = await events_until_gone(pool)
            assert isinstance(gone, ChildGone)
            gone.settled.set_exception(error)
        assert await anext(pool) == SlotFailed(error)
        await asyncio.wait(pool.tasks)
        assert len(left) == 1

    in_a_pool(scenario)


def test_an_unused_wake_up_is_passed_to_children_of_the_other_kind() -> None:
    async def scenario() -> None:
        woken, same, other, starting_up = (FakeProcess(number, alone=number > 2) for number in range(1, 5))
        pool = pool_of(SteppedClock(), woken, same, other, starting_up)
        for child in (woken, same, other):
            child.say(Held(1))
        slot = ChildSlot(1, SteppedClock())
        pool._handle(slot, Incarnation(1, 1, 0, alone=False, slow_start=False), woken, WakeupUnused())
        assert (woken.sent, same.sent, other.sent, starting_up.sent) == ([], [], [Look()], [])

    asyncio.run(scenario())


def test_tasks_of_children_that_the_worker_kills_at_its_end_are_released() -> None:
    async def scenario() -> None:
        children = FakeProcess(1), FakeProcess(2)
        pool_of(SteppedClock(), *children).kill()
        assert [(child.dismissed, child.killed) for child in children] == [(True, True)] * 2

    asyncio.run(scenario())
