"""Three real nodes run the same twenty schedules; their leader is killed: each occurrence happens exactly once."""

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
from holdfast.core.schedule.occurrences import shown_time
from holdfast.core.schedule.record import Schedule
from holdfast.core.schedule.timing import occurrences_of
from holdfast.core.task import Task
from holdfast.maintenance.service import LEADER_TTL_MS
from holdfast.stores.contract import MAINTENANCE, Store
from holdfast.stores.open import open_store
from tests.maintenance.setting import all_tasks
from tests.servers.urls import STORES
from tests.support import WorkerProcess, eventually, run_worker

T = TypeVar("T")
APP = "tests.maintenance.apps.beats:app"
#: More rounds, for a long run: owners are killed and frozen in turn.
ROUNDS = int(os.environ.get("SCHEDULE_ROUNDS", "1"))
SECOND_MS = 1_000
ON_STORES = ["sqlite", *(pytest.param(each, marks=pytest.mark.long) for each in STORES if each != "sqlite")]


def ask(url: str, question: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_store(url)
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def _owner(store: Store) -> str:
    return (await store.lead(MAINTENANCE, None)).owner


def _fired_until(url: str) -> int:
    """Up to when every schedule has fired; 0 while there are fewer than twenty."""
    schedules = ask(url, actions.listed)
    return min((each.last_at_ms or 0 for each in schedules), default=0) if len(schedules) == 20 else 0


def _occurrences_go_on(url: str, since_ms: int, for_ms: int) -> int:
    return eventually(lambda: (at := _fired_until(url)) > since_ms + for_ms and at, 60)


def _owning(workers: list[WorkerProcess], url: str) -> WorkerProcess | None:
    owner = ask(url, _owner)
    return next((worker for worker in workers if f":{worker.pid}-" in owner), None)


def _expected(schedule: Schedule, first: Counter[str], until_ms: int, made: list[Task]) -> list[str]:
    """All its occurrences from the first that was made, up to then."""
    since_ms = min(_occurrence_ms(task) for task in made)
    occurrences = occurrences_of(schedule.timing)
    return [
        shown_time(occurrence)
        for occurrence in occurrences.upcoming(since_ms - 1, len(first) + 100)
        if occurrence <= until_ms
    ]


def _occurrence_ms(task: Task) -> int:
    return round(datetime.fromisoformat(task.headers["occurrence"]).timestamp() * 1000)


@pytest.mark.parametrize("url", ON_STORES, indirect=True)
def test_each_occurrence_happens_once_while_owners_are_killed(url: str) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(run_worker(APP, url)) for _ in range(3)]
        begun_ms = _occurrences_go_on(url, 0, 0)
        for number in range(ROUNDS):
            begun_ms = _occurrences_go_on(url, begun_ms, SECOND_MS)
            victim = eventually(lambda: _owning(workers, url), 20)
            assert victim is not None
            if number % 2:
                victim.signal(signal.SIGSTOP)
            else:
                victim.kill_all()
                workers.remove(victim)
            begun_ms = _occurrences_go_on(url, _fired_until(url), 2 * SECOND_MS)
            if number % 2:
                victim.signal(signal.SIGCONT)  # it still believes in its turn
            elif ROUNDS > 1:
                workers.append(stack.enter_context(run_worker(APP, url)))
        until_ms = _fired_until(url)
        for worker in workers:
            worker.stop()
    tasks, schedules = ask(url, all_tasks), ask(url, actions.listed)
    for schedule in schedules:
        made = [task for task in tasks if task.headers["schedule"] == schedule.name]
        occurrences = Counter(task.headers["occurrence"] for task in made)
        assert {occurrence: count for occurrence, count in occurrences.items() if count > 1} == {}, schedule.name
        assert set(_expected(schedule, occurrences, until_ms, made)) - set(occurrences) == set(), schedule.name
    # A killed owner costs at most the rest of its leadership. A busy machine takes longer: this bound only tells that
    # from an owner that is never replaced.
    assert max(task.created_at_ms - _occurrence_ms(task) for task in tasks) < 10 * LEADER_TTL_MS
