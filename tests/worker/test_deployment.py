"""What must hold when a worker is replaced under full load."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

from holdfast import Holdfast
from holdfast.core.task import State, Task
from holdfast.stores.contract import Query
from tests.support import eventually, run_worker
from tests.worker.apps.unruly import make_cpu_app

APP = "tests.worker.apps.unruly:cpu_app"
TASKS = 1_000
#: Far longer than the grace period and far shorter than the tasks: a hang becomes a failure.
HANG_SECONDS = 120
#: The unfinished ones: coroutines and threads that end when cancelled, that go on, that block in C or the event loop.
MIXTURE = (
    ("sleeps", (600.0,), 500),
    ("sleeps_in_thread", (600.0,), 200),
    ("ignores_everything", (), 100),
    ("ignores_everything_in_loop", (), 100),
    ("sleeps_in_c_alone", (600.0,), 20),
    ("ignores_alone", (), 20),
    ("sleeps", (0.0,), 60),
)


def test_sigterm_among_a_thousand_mixed_tasks(url: str) -> None:
    with make_cpu_app(url) as app:
        for name, arguments, count in MIXTURE:
            app.enqueue_many(app.task_types[name].prepare(*arguments) for _ in range(count))
        options = ("--concurrency", "470", "--processes", "2", "--cpu-processes", "2", "--grace", "2s")
        with run_worker(APP, url, *options, "--lease", "60s") as worker:
            eventually(lambda: states(app)[State.CLAIMED] == 902, 60)
            app.task_types["sleeps_in_c_in_loop"].enqueue(600.0)  # from now on one event loop stands still
            eventually(lambda: states(app)[State.CLAIMED] == 903, 60)
            worker.signal(signal.SIGTERM)
            assert worker.process.wait(HANG_SECONDS) == 0
            found = all_tasks(app)
        unfinished = [task for task in found if task.state is not State.SUCCEEDED]
        assert {(task.state, task.attempt) for task in unfinished} == {(State.READY, 0)}
        assert len(found) - len(unfinished) == 60
        assert Counter(task.deliveries for task in unfinished) == {1: 903, 0: 38}


def states(app: Holdfast) -> Counter[State]:
    async def count() -> Counter[State]:
        counted: Counter[State] = Counter()
        for queue in await app.store.counts():
            counted.update(queue.states)
        return counted

    return asyncio.run(count())


def all_tasks(app: Holdfast) -> list[Task]:
    async def read() -> list[Task]:
        tasks: list[Task] = []
        cursor: str | None = None
        while True:
            page = await app.store.find(Query(limit=1_000, cursor=cursor))
            tasks += page.tasks
            cursor = page.cursor
            if cursor is None:
                return tasks

    return asyncio.run(read())
