"""Counting in plain integers: what is taken, what is added, and that labels are bounded."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic_ns
from typing import Any

import msgspec
import pytest

from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Event, Verdict
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.task import Claimed, Failure, State
from holdfast.errors import StoreUnavailable
from holdfast.observe.backlog import LOOK_MS, TOO_OLD_MS, Backlog
from holdfast.observe.metrics import (
    MAX_PAIRS,
    OTHER,
    QUEUE_OLDEST,
    QUEUE_TASKS,
    RUN_SECONDS,
    RUNS_ENDED,
    RUNS_STARTED,
    SLOTS,
    STORE_UP,
    TASKS_ENQUEUED,
    WAIT_SECONDS,
    WORKERS,
    Clocked,
    Tally,
)
from holdfast.observe.runs import OUTCOMES, RunTally
from holdfast.observe.server import ServerMetrics
from holdfast.stores.contract import QueueCounts, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock


class FakeRun:
    """A run that waited two seconds and took three."""

    def __init__(self, task_type: str = "send", queue: str = "mails", ready_at_ms: int = 1_000) -> None:
        token, times_ms = "1.1.claim", (500, 3_000, ready_at_ms)
        self.task = Claimed("id", token, task_type, queue, b"{}", {}, 0, DEFAULT_POLICY, 1, *times_ms)
        self.began_at_ns = monotonic_ns() - 3_000_000_000
        self.noted = False
        self.settled = False


ACK = lifecycle.ack("id", "1.1.claim")


def end(tally: Tally, *ended: tuple[FakeRun, Change | None]) -> RunTally:
    runs = RunTally(tally)
    for run, change in ended:
        runs.note_ended(run, change)
    runs.flush()
    return runs


def read(tally: Tally) -> dict[tuple[str, ...], list[int]]:
    return {(metric.name, *labels): list(cell) for metric, labels, cell in tally if any(cell)}


def test_what_is_taken_is_added_elsewhere_and_not_taken_again() -> None:
    child, parent = Tally(), Tally()
    child.count(TASKS_ENQUEUED, "mails", "send", by=3)
    Clocked(child, RUN_SECONDS, "mails", "send").note(7_000)
    for _ in range(2):
        parent.add(child.take())
    assert child.take() == []
    child.count(TASKS_ENQUEUED, "mails", "send")
    parent.add(child.take())
    assert parent.cell(TASKS_ENQUEUED, "mails", "send") == [4]
    assert parent.cell(RUN_SECONDS, "mails", "send")[1] == 1
    assert parent.cell(RUN_SECONDS, "mails", "send")[-1] == 7_000


def test_one_pair_too_many_is_counted_with_the_others() -> None:
    tally = Tally()
    runs = RunTally(tally)
    for number in range(MAX_PAIRS + 7):
        tally.count(TASKS_ENQUEUED, f"queue-{number}", "send")
        runs.note_ended(FakeRun(queue=f"queue-{number}"), ACK)
    runs.flush()
    pairs = {labels[:2] for metric, labels, _ in tally if metric is RUNS_ENDED}
    assert len(pairs) == MAX_PAIRS + 1
    assert tally.cell(TASKS_ENQUEUED, OTHER, OTHER) == [7]
    assert tally.cell(RUNS_STARTED, OTHER, OTHER) == [7]


def test_a_short_run_is_counted_at_its_end_and_a_long_one_at_its_beginning_too() -> None:
    tally = Tally()
    runs = RunTally(tally)
    long, short = FakeRun(), FakeRun()
    runs.note_begun([long])
    runs.note_begun([long])
    runs.flush()
    assert tally.cell(RUNS_STARTED, "mails", "send") == [1]
    assert tally.cell(WAIT_SECONDS, "mails", "send")[-1] == 2_000_000
    runs.note_ended(long, ACK)
    runs.note_ended(short, ACK)
    runs.note_ended(FakeRun("other"), None)
    runs.flush()
    assert tally.cell(RUNS_STARTED, "mails", "send") == [2]
    assert tally.cell(RUNS_ENDED, "mails", "send", "succeeded") == [2]
    assert tally.cell(RUNS_ENDED, "mails", "other", "lost") == [1]
    assert 6_000_000 <= tally.cell(RUN_SECONDS, "mails", "send")[-1] < 30_000_000
    assert sum(tally.cell(RUN_SECONDS, "mails", "send")[:-1]) == 2
    assert sum(tally.cell(RUN_SECONDS, "mails", "send")[: RUN_SECONDS.buckets.index(2.5) + 1]) == 0


def test_a_task_waits_from_when_it_was_ready_or_due_and_else_from_its_enqueue() -> None:
    tally = Tally()
    end(tally, (FakeRun(ready_at_ms=2_900), ACK), (FakeRun(ready_at_ms=0), ACK))
    cell = tally.cell(WAIT_SECONDS, "mails", "send")
    assert (cell[WAIT_SECONDS.buckets.index(0.1)], cell[WAIT_SECONDS.buckets.index(2.5)], sum(cell[:-1])) == (1, 1, 2)
    assert cell[-1] == 2_600_000


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    tally = Tally()
    end(tally, (FakeRun(ready_at_ms=9_000), ACK))
    cell = tally.cell(WAIT_SECONDS, "mails", "send")
    assert (cell[0], cell[-1]) == (1, 0)


def test_every_way_in_which_a_run_is_settled_has_its_outcome() -> None:
    assert set(OUTCOMES) == lifecycle.SETTLEMENTS - {Event.REQUEUE}  # that is done for a run by others


@pytest.mark.parametrize("event", OUTCOMES, ids=str)
def test_outcomes(event: Event) -> None:
    tally = Tally()
    end(tally, (FakeRun(), Change(event, "id", "1.1.claim")))
    assert tally.cell(RUNS_ENDED, "mails", "send", OUTCOMES[event]) == [1]


def test_a_run_that_settled_itself_has_succeeded() -> None:
    tally, run = Tally(), FakeRun()
    run.settled = True
    end(tally, (run, None))
    assert tally.cell(RUNS_ENDED, "mails", "send", "succeeded") == [1]


# -- the look at the store -----------------------------------------------------------------------------------


class FakeStore:
    """A store that is looked at."""

    url = "fake:"

    def __init__(self, *queues: QueueCounts) -> None:
        self.queues = list(queues)
        self.looks = 0
        self.away = False

    async def counts(self) -> list[QueueCounts]:
        self.looks += 1
        if self.away:
            raise StoreUnavailable("gone")
        return self.queues

    async def workers(self) -> list[WorkerRecord]:
        plain: dict[str, Any] = {"host": "h", "pid": 1, "version": "1", "queues": (), "types": ()}
        return [
            WorkerRecord(worker_id="a", processes=2, concurrency=10, running=4, **plain),
            WorkerRecord(worker_id="b", processes=1, concurrency=1, running=0, status="draining", **plain),
            WorkerRecord(worker_id="c", processes=9, concurrency=9, running=9, alive=False, **plain),
        ]


def look(backlog: Backlog) -> dict[tuple[str, ...], float]:
    return {(metric.name, *labels): value for metric, labels, value in asyncio.run(backlog.gauges())}


def test_many_questions_are_one_look() -> None:
    store, clock = FakeStore(QueueCounts(queue="mails", states={State.READY: 3}, oldest_ready_ms=1_500)), SteppedClock()
    backlog = Backlog(store, clock)  # type: ignore[arg-type]
    for _ in range(5):
        seen = look(backlog)
    assert store.looks == 1
    assert seen[QUEUE_TASKS.name, "mails", "ready"] == 3
    assert seen[QUEUE_TASKS.name, "mails", "dead_lettered"] == 0
    assert seen[QUEUE_OLDEST.name, "mails"] == 1.5
    assert (seen[WORKERS.name, "running"], seen[WORKERS.name, "draining"], seen[WORKERS.name, "silent"]) == (1, 1, 1)
    assert (seen[SLOTS.name, "busy"], seen[SLOTS.name, "free"]) == (4, 17)
    clock.advance(LOOK_MS)
    look(backlog)
    assert store.looks == 2


def test_a_store_that_is_away_is_told_of_and_the_last_look_holds_for_a_while(caplog: Any) -> None:
    store, clock = FakeStore(QueueCounts(queue="mails", states={State.READY: 3})), SteppedClock()
    backlog = Backlog(store, clock)  # type: ignore[arg-type]
    assert look(backlog)[STORE_UP.name,] == 1
    store.away = True
    clock.advance(LOOK_MS)
    with caplog.at_level(logging.ERROR):
        seen = look(backlog)
        assert (seen[STORE_UP.name,], seen[QUEUE_TASKS.name, "mails", "ready"]) == (0, 3)
        clock.advance(TOO_OLD_MS)
        assert look(backlog) == {(STORE_UP.name,): 0}
    store.away = False
    assert look(backlog)[STORE_UP.name,] == 1


def test_queues_beyond_the_limit_are_one() -> None:
    queues = [
        QueueCounts(queue=f"q{n}", states={State.READY: 1}, oldest_ready_ms=n, paused=n == MAX_PAIRS)
        for n in range(MAX_PAIRS + 5)
    ]
    seen = look(Backlog(FakeStore(*queues), SteppedClock()))  # type: ignore[arg-type]
    assert seen[QUEUE_TASKS.name, OTHER, "ready"] == 5
    assert seen[QUEUE_OLDEST.name, OTHER] == (MAX_PAIRS + 4) / 1000
    assert len({key for key in seen if key[0] == QUEUE_OLDEST.name}) == MAX_PAIRS + 1


# -- a server -----------------------------------------------------------------------------------------------


def test_a_server_counts_a_foreign_run_once() -> None:
    async def run() -> dict[tuple[str, ...], list[int]]:
        metrics = ServerMetrics(open_store("sqlite://"), SystemClock())
        task = FakeRun().task
        metrics.began([task])
        metrics.began([task])  # the reply was lost, and the reserve repeated
        metrics.ended([lifecycle.ack("id", "1.1.foreign")], [Verdict(False, reason="stale_claim")])
        failed = lifecycle.fail(
            "id", "1.1.claim", Failure("E", "m"), attempt=1, policy=DEFAULT_POLICY, retryable=True, random_unit=0.5
        )
        for verdict in (Verdict(True), Verdict(True, repeated=True)):
            metrics.ended([failed], [verdict])
        again = msgspec.structs.replace(task, token="1.2.claim")
        metrics.began([again])
        metrics.ended([lifecycle.ack("id", "1.2.claim")], [Verdict(True)])
        await metrics.page()
        await metrics.store.close()
        return read(metrics._tally)

    seen = asyncio.run(run())
    assert seen[RUNS_STARTED.name, "mails", "send"] == [2]
    assert seen[RUNS_ENDED.name, "mails", "send", "retried"] == [1]
    assert seen[RUNS_ENDED.name, "mails", "send", "succeeded"] == [1]
