"""Three real nodes run the same twenty schedules; the one that makes the ticks is killed: each tick exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import datetime
from typing import TypeVar

import pytest

from holdfast.admin import schedules as actions
from holdfast.core.schedule import Schedule
from holdfast.core.task import Task
from holdfast.core.tick_tasks import shown_tick
from holdfast.core.ticks import ticks_of
from holdfast.maintenance.service import DUTY_TTL_MS
from holdfast.stores.contract import UPKEEP_DUTY, Store
from holdfast.stores.open import open_store
from tests.schedules.setting import all_tasks
from tests.support import WorkerProcess, eventually, run_worker

T = TypeVar("T")
APP = "tests.schedules.apps.beats:app"
#: More rounds, for a long run: owners are killed and frozen in turn.
ROUNDS = int(os.environ.get("SCHEDULE_ROUNDS", "1"))
SECOND_MS = 1_000


def ask(url: str, question: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_store(url)
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def _owner(store: Store) -> str:
    return (await store.hold_duty(UPKEEP_DUTY, "", 0)).owner


def _ticked_until(url: str) -> int:
    """Up to when every schedule has ticked; 0 while there are fewer than twenty."""
    schedules = ask(url, actions.listed)
    return min((each.last_at_ms or 0 for each in schedules), default=0) if len(schedules) == 20 else 0


def _ticks_go_on(url: str, since_ms: int, for_ms: int) -> int:
    return eventually(lambda: (at := _ticked_until(url)) > since_ms + for_ms and at, 60)


def _owning(workers: list[WorkerProcess], url: str) -> WorkerProcess | None:
    owner = ask(url, _owner)
    return next((worker for worker in workers if f":{worker.pid}-" in owner), None)


def _expected(schedule: Schedule, first: Counter[str], until_ms: int, made: list[Task]) -> list[str]:
    """All its ticks from the first that was made, up to then."""
    since_ms = min(_tick_ms(task) for task in made)
    ticks = ticks_of(schedule.timing)
    return [shown_tick(tick) for tick in ticks.upcoming(since_ms - 1, len(first) + 100) if tick <= until_ms]


def _tick_ms(task: Task) -> int:
    return round(datetime.fromisoformat(task.headers["tick"]).timestamp() * 1000)


@pytest.mark.slow
def test_each_tick_happens_once_while_owners_are_killed(url: str) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(run_worker(APP, url)) for _ in range(3)]
        begun_ms = _ticks_go_on(url, 0, 0)
        for number in range(ROUNDS):
            begun_ms = _ticks_go_on(url, begun_ms, SECOND_MS)
            victim = eventually(lambda: _owning(workers, url), 20)
            assert victim is not None
            if number % 2:
                victim.signal(signal.SIGSTOP)
            else:
                victim.kill_all()
                workers.remove(victim)
            begun_ms = _ticks_go_on(url, _ticked_until(url), 2 * SECOND_MS)
            if number % 2:
                victim.signal(signal.SIGCONT)  # it still believes in its turn
            elif ROUNDS > 1:
                workers.append(stack.enter_context(run_worker(APP, url)))
        until_ms = _ticked_until(url)
        for worker in workers:
            worker.stop()
    tasks, schedules = ask(url, all_tasks), ask(url, actions.listed)
    for schedule in schedules:
        made = [task for task in tasks if task.headers["schedule"] == schedule.name]
        ticks = Counter(task.headers["tick"] for task in made)
        assert {tick: count for tick, count in ticks.items() if count > 1} == {}, schedule.name
        assert set(_expected(schedule, ticks, until_ms, made)) - set(ticks) == set(), schedule.name
    # A killed owner costs at most the time for which it held its duty; the rest is that of a busy machine.
    assert max(task.created_at_ms - _tick_ms(task) for task in tasks) < 2 * DUTY_TTL_MS
