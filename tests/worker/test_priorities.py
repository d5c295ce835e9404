"""What goes first when more waits than can run: order and movement, with real workers. How fast, `make bench` tells."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest

from holdfast import Holdfast, TaskHandle
from holdfast.core.priority import step_of
from holdfast.core.task import State, Task
from holdfast.stores.contract import MAX_BATCH
from tests.support import WorkerProcess, eventually, run_worker
from tests.worker.apps.load import make_app

LOW = 5_000
HIGH = 5
#: Between the moment by the store's clock at which a claim is made and the one at which it can be seen.
MARGIN_MS = 20

Handles = Sequence[TaskHandle[None]]


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    with make_app(url) as made:
        yield made


@contextmanager
def working(url: str, *options: str) -> Iterator[WorkerProcess]:
    with run_worker("tests.worker.apps.load:app", url, *options) as worker:
        yield worker


def enqueue(app: Holdfast, count: int, seconds: float, queue: str = "default", priority: int = 0) -> Handles:
    task_type = app.task_types["work"].using(queue=queue, priority=priority)
    return app.enqueue_many(task_type.prepare(seconds) for _ in range(count))


def look(app: Holdfast, handles: Handles) -> list[Task]:
    async def read() -> list[Task]:
        found: list[Task | None] = []
        for start in range(0, len(handles), MAX_BATCH):
            found += await app.store.get([handle.task_id for handle in handles[start : start + MAX_BATCH]])
        return [task for task in found if task is not None]

    return asyncio.run(read())


def ended(app: Holdfast, handles: Handles) -> int:
    return sum(task.state is State.SUCCEEDED for task in look(app, handles))


def starts(app: Holdfast, handles: Handles) -> list[int]:
    """When the tasks were claimed, by the store's clock."""
    return [attempt.started_at_ms for task in look(app, handles) for attempt in task.history]


@pytest.mark.parametrize("order", ["strict", "aged"])
def test_high_ones_that_trickle_in_pass_by_all_the_low_ones(app: Holdfast, url: str, order: str) -> None:
    app.queues.set_order("default", order)  # type: ignore[arg-type]
    low = enqueue(app, LOW, 0.02)
    high: list[tuple[float, TaskHandle[None]]] = []
    with working(url, "--concurrency", "10"):
        eventually(lambda: ended(app, low[:100]) == 100, 20)
        for _ in range(30):
            latest = enqueue(app, 1, 0.02, priority=HIGH)
            high += [(time.time(), handle) for handle in latest]
            eventually(partial(ended, app, latest), 20)
        eventually(lambda: ended(app, [handle for _, handle in high]) == 30, 20)
        assert app.queues.list()[0].states.get(State.READY, 0) > 0, "there was nothing to pass by"
    low_starts = starts(app, low)
    for recorded_at, handle in high:
        (high_start,) = starts(app, [handle])
        overtaken_by = [at for at in low_starts if 1000 * recorded_at + MARGIN_MS < at < high_start]
        assert overtaken_by == [], "a low one was taken although a high one waited"


def test_low_ones_keep_moving_in_an_aged_queue_while_more_high_ones_come_than_can_run(app: Holdfast, url: str) -> None:
    app.queues.set_order("default", "aged", step="100ms")
    low = enqueue(app, 50, 0.02)
    high: list[TaskHandle[None]] = []

    def more_than_can_run() -> bool:
        """Keeps more high ones waiting than all the low ones, until those have ended."""
        nonlocal high
        if app.queues.list()[0].states.get(State.READY, 0) < 2 * len(low):
            high += enqueue(app, 20, 0.02, priority=HIGH)
        return ended(app, low) == len(low)

    with working(url, "--concurrency", "2"):
        eventually(more_than_can_run, 60)
        waiting = sum(task.state is State.READY for task in look(app, high))
        assert waiting > 0, "the high ones were not too many"
        eventually(lambda: max(starts(app, high)) > min(starts(app, low)), 20, "the high ones move too")
    low_starts, high_starts = starts(app, low), starts(app, high)
    assert min(high_starts) < min(low_starts), "the high ones came first"
    assert step_of("aged", "100ms") * HIGH <= min(low_starts) - min(task.created_at_ms for task in look(app, low))


def test_high_ones_that_keep_coming_keep_the_low_ones_waiting_in_a_strict_queue(app: Holdfast, url: str) -> None:
    app.queues.set_order("default", "strict")
    low, high = enqueue(app, 50, 0.0), enqueue(app, 80, 0.02, priority=HIGH)
    with working(url, "--concurrency", "2"):
        eventually(lambda: ended(app, low) == len(low), 30)
    assert max(starts(app, high)) <= min(starts(app, low))


def test_queues_in_strict_order(app: Holdfast, url: str) -> None:
    low, high = enqueue(app, 60, 0.01, "low"), enqueue(app, 60, 0.01, "high")
    with working(url, "--queues", "high,low", "--concurrency", "4"):
        eventually(lambda: ended(app, [*low, *high]) == 120, 30)
    assert max(starts(app, high)) <= min(starts(app, low))


def test_queues_by_weight(app: Holdfast, url: str) -> None:
    weights = {"high": 5, "default": 2, "low": 1}
    handles = {queue: enqueue(app, 250, 0.01, queue) for queue in weights}
    with working(url, "--queues", "high=5,default=2,low=1", "--concurrency", "8"):
        eventually(lambda: ended(app, handles["high"]) == 250, 30)
    claimed = sorted(itertools.chain(*([(at, queue) for at in starts(app, handles[queue])] for queue in weights)))
    shares = Counter(queue for _, queue in claimed[:320])
    for queue, weight in weights.items():
        assert abs(shares[queue] - 320 * weight / 8) <= 16, shares
