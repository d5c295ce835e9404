"""The inside of a child without its process: slots, lanes and fetcher on a store in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import Clock, SystemClock
from holdfast.core.arguments import ArgumentCodec
from holdfast.core.fairness import StrictOrder
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change
from holdfast.core.policy import DEFAULT_POLICY, RunPolicy
from holdfast.core.sealing import Sealing
from holdfast.core.task import Claimed, NewTask, State, Task
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.worker.ends import Ends
from holdfast.worker.execute import run_coroutine, run_function
from holdfast.worker.fetch import Claims, Fetcher
from holdfast.worker.lanes import LoopLane, ThreadLane
from holdfast.worker.messages import FromChild, Held
from holdfast.worker.middleware import Around, Surrounded
from holdfast.worker.run import Run, Workplace
from holdfast.worker.slots import Slots
from holdfast.worker.wear import Wear

IDS = IdSource(SystemClock().now_ms, os.urandom)


@dataclass
class FakeType:
    """A task type as a worker sees it."""

    function: Callable[..., Any]
    is_async: bool = True
    name: str = "work"
    alone: bool = False
    sealing: Sealing | None = None
    codec: ArgumentCodec = field(init=False)

    def __post_init__(self) -> None:
        self.codec = ArgumentCodec(self.function, self.name)


def claimed(payload: bytes = b"{}", attempt: int = 1, policy: RunPolicy = DEFAULT_POLICY) -> Claimed:
    """A task under a claim."""
    return Claimed(IDS.task_id(), "1.1.abc", "work", "default", payload, {}, 0, policy, attempt, 0, 0)


def run_of(
    function: Callable[..., Any],
    task: Claimed | None = None,
    *,
    is_async: bool = False,
    workplace: Workplace | None = None,
) -> Run:
    """A run of this function that has not begun."""
    deadline_ms = SystemClock().monotonic_ms() + 60_000
    return Run(1, task or claimed(), FakeType(function, is_async), 1, deadline_ms, workplace)


class Rig:
    """A fetcher that works on `store` and runs `function` for every task."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        slots: int = 10,
        slow_start: bool = False,
        store: Store | None = None,
        clock: Clock | None = None,
        is_async: bool = True,
        wear: Wear | None = None,
        middlewares: Sequence[Around] = (),
        some_types_only: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.store = store or open_store("sqlite://")
        self.told: list[Held] = []
        #: All else that the supervisor was told.
        self.news: list[FromChild] = []
        self.started: list[int] = []
        self.most_running = 0
        self.slots = Slots(loop, slots, slow_start=slow_start, on_end=Ends(loop, self._tell).note)
        self._lane: LoopLane | ThreadLane[Run, Change | None]
        if middlewares:
            self._lane = LoopLane(loop, Surrounded(loop, middlewares).perform, self.slots.finish)
        elif is_async:
            self._lane = LoopLane(loop, run_coroutine, self.slots.finish)
        else:
            self._lane = ThreadLane(loop, run_function, self.slots.finish)
        claims = Claims(
            "tester",
            30_000,
            StrictOrder(["default"]),
            {"work": FakeType(function, is_async)},
            IDS,
            some_types_only=some_types_only,
        )
        self.workplace = Workplace(self.store, loop)
        self.fetcher = Fetcher(
            self.workplace,
            self.slots,
            claims,
            clock or SystemClock(),
            tell=self._tell,
            start=self._start,
            wear=wear,
        )
        self.task_ids: list[str] = []

    async def enqueue(self, count: int, payload: bytes = b"{}", policy: RunPolicy = DEFAULT_POLICY) -> None:
        """Records tasks for it."""
        tasks = [
            NewTask(task_id=IDS.task_id(), type="work", queue="default", payload=payload, policy=policy)
            for _ in range(count)
        ]
        self.task_ids += [task.task_id for task in tasks]
        await self.store.enqueue(tasks)

    async def tasks(self) -> list[Task]:
        """All tasks that were recorded."""
        return [task for task in await self.store.get(self.task_ids) if task is not None]

    async def until(self, state: State, count: int) -> None:
        """Waits until so many tasks stand in this state."""
        async with asyncio.timeout(30):
            while sum(task.state is state for task in await self.tasks()) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def work_off(self, state: State = State.SUCCEEDED) -> None:
        """Runs until all recorded tasks stand in this state, then until it is quiet."""
        working = asyncio.create_task(self.fetcher.run())
        await self.until(state, len(self.task_ids))
        self.fetcher.quiet()
        await asyncio.wait_for(working, 10)

    def held(self) -> set[int]:
        """The keys that the supervisor knows of."""
        keys: set[int] = set()
        for message in self.told:
            keys -= set(message.drop)
            keys |= {task.key for task in message.add}
        return keys

    async def _tell(self, message: FromChild) -> None:
        if isinstance(message, Held):
            self.told.append(message)
        else:
            self.news.append(message)

    def _start(self, run: Run) -> None:
        assert run.key in self.held(), "a task was started before the supervisor knew of it"
        self.started.append(run.key)
        self.most_running = max(self.most_running, len(self.slots.running))
        self._lane.start(run)
