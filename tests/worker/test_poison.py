"""Whatever a task raises, returns or starts: its run ends, its slot is free, and its neighbours do not notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chaos.poison import POISONS, Poison

from holdfast import Holdfast, Retry
from holdfast.core import lifecycle
from holdfast.core.names import MAX_REASON_CHARS
from holdfast.core.task import FINAL_STATES, HISTORY_LIMIT, State
from holdfast.stores import documents
from tests.support import WorkerProcess, eventually, run_worker
from tests.worker.apps.poisoned import make_app
from tests.worker.helpers import enqueue, in_state

APP = "tests.worker.apps.poisoned:app"
HARMLESS = tuple(poison for poison in POISONS if not poison.kills_its_process)
DEADLY = tuple(poison for poison in POISONS if poison.kills_its_process)
#: As many as there are slots: one that is lost for good would be missed.
SLOTS = 3


@pytest.fixture
def poisoned(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app


def test_every_poison_task_ends_and_frees_its_slot(poisoned: Holdfast, url: str) -> None:
    tasks = {poison: [enqueue(poisoned, poison.name) for _ in range(2)] for poison in HARMLESS}
    neighbours = [enqueue(poisoned, name, 1, 2) for name in ("add", "add_in_thread") * SLOTS]
    with run_worker(APP, url, "--concurrency", str(SLOTS)) as worker:
        for poison, handles in tasks.items():
            for handle in handles:
                state = in_state(handle, *FINAL_STATES, timeout=60).state
                assert state in poison.ends, (poison.name, state, handle.history(), worker.output())
        assert [neighbour.result("30s") for neighbour in neighbours] == [3] * len(neighbours)
        _has_free_slots(poisoned)
        assert len(worker.children()) == 1
        assert "starting another one" not in worker.output()
        assert "bug in Holdfast" not in worker.output()


@pytest.mark.parametrize("poison", DEADLY, ids=lambda poison: poison.name)
def test_a_task_that_ends_the_event_loop_costs_its_process_and_no_more(
    poisoned: Holdfast, url: str, poison: Poison
) -> None:
    task = enqueue(poisoned, poison.name)
    with run_worker(APP, url, "--concurrency", str(SLOTS)) as worker:
        assert in_state(task, *FINAL_STATES, timeout=60).state in poison.ends
        assert {attempt.outcome for attempt in task.history()} == {"worker_lost"}
        _has_free_slots(poisoned)
        _is_alone(worker)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_task_whose_error_blocks_the_event_loop_costs_its_process(poisoned: Holdfast, url: str) -> None:
    task = enqueue(poisoned, "blocks_the_loop_when_described")
    with run_worker(APP, url, "--lease", "1s") as worker:
        assert in_state(task, *FINAL_STATES, timeout=60).reason == "worker_lost"
        assert f"task {task.task_id}: blocks the event loop after it has returned" in worker.output()
        assert enqueue(poisoned, "add", 1, 2).result("30s") == 3


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the kit has the history of each store
def test_a_task_that_snoozes_without_end_keeps_a_short_history(poisoned: Holdfast, url: str) -> None:
    times = HISTORY_LIMIT + 20
    task = enqueue(poisoned, "snoozes", times)
    with run_worker(APP, url):
        assert task.result("60s") == times + 1
        ended = task.status()
    assert ended.deliveries == times + 1
    assert ended.attempt == 1
    assert len(ended.history) <= HISTORY_LIMIT


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("user said \ud83d", r"user said \ud83d"),
        ("a\0b", r"a\x00b"),
        ("x" * 5_000_000, "x" * (MAX_REASON_CHARS - 1) + "…"),
    ],
    ids=["half a character", "NUL", "long"],
)
def test_the_reason_of_a_cancellation_or_a_discard_is_cleaned(
    poisoned: Holdfast, url: str, given: str, kept: str
) -> None:
    waiting = enqueue(poisoned, "add", 1, 2)
    assert waiting.cancel(given)
    assert waiting.status().reason == kept
    dead = poisoned.task_types["returns_nan_as_a_key"].using(retry=Retry(max_attempts=1)).enqueue()
    with run_worker(APP, url, "--burst") as worker:
        assert worker.process.wait(60) == 0
    (verdict,) = dead._link.run(poisoned.store.apply([lifecycle.discard(dead.task_id, given)]))
    assert verdict.applied
    (discard,) = dead._link.run(documents.discards(poisoned.store))
    assert discard.reason == kept


def _has_free_slots(app: Holdfast) -> None:
    """As many tasks as there are slots run at once, after some that let a child grow that begins with one."""
    assert [enqueue(app, "add", 1, 2).result("30s") for _ in range(SLOTS)] == [3] * SLOTS
    for task in [enqueue(app, "sleeps_in_thread", 600.0) for _ in range(SLOTS)]:
        in_state(task, State.CLAIMED)


def _is_alone(worker: WorkerProcess) -> None:
    eventually(lambda: len(worker.children()) == 1, 20, "one child")
