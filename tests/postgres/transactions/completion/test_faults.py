"""Workers that are killed and workers that stand still: each task's row is written exactly once.

The long form: HOLDFAST_KILLS=100 HOLDFAST_FREEZES=20, with HOLDFAST_SEED for other moments.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast
from tests.postgres.transactions.completion.bank import TABLES, make_app
from tests.servers.postgres import PostgresServer
from tests.support import WorkerProcess, eventually, run_worker

KILLS = int(os.environ.get("HOLDFAST_KILLS", "15"))
FREEZES = int(os.environ.get("HOLDFAST_FREEZES", "3"))
SEED = int(os.environ.get("HOLDFAST_SEED", "4"))
APP = "tests.postgres.transactions.completion.bank:app"
_BATCH = 200


@dataclass
class Bank:
    """Numbers that are to be booked, and what was."""

    app: Holdfast
    server: PostgresServer
    database: str
    random: Random
    enqueued: int = 0

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.server.query(statement, *values, database=self.database)

    def booked(self) -> int:
        return int(self.query("SELECT count(*) FROM bookings")[0][0])

    def feed(self) -> None:
        """Never lets the workers run dry."""
        if self.enqueued - self.booked() < _BATCH:
            types = [self.app.task_types["book"], self.app.task_types["book_in_thread"]]
            numbers = range(self.enqueued, self.enqueued + _BATCH)
            self.app.enqueue_many(types[number % 2].prepare(number) for number in numbers)
            self.enqueued += _BATCH

    def work_on(self) -> None:
        """Until some more are booked, and then to a random moment."""
        self.feed()
        enough = self.booked() + self.random.randint(5, 25)
        eventually(lambda: self.booked() >= enough, 60, "bookings go on")
        threading.Event().wait(self.random.uniform(0, 0.05))

    def claims(self, worker: WorkerProcess) -> set[tuple[Any, ...]]:
        found = self.query(
            "SELECT task_id, deliveries FROM holdfast.claims WHERE worker_id LIKE %s", f"%:{worker.pid}-%"
        )
        return set(found)

    def has_lost(self, worker: WorkerProcess, held: set[tuple[Any, ...]]) -> bool:
        return not held & self.claims(worker)


@pytest.fixture
def bank(durable_postgres: PostgresServer, durable_database: str) -> Iterator[Bank]:
    with make_app(durable_postgres.url(durable_database)) as app:
        found = Bank(app, durable_postgres, durable_database, Random(SEED))
        found.query(TABLES)
        found.feed()
        yield found


@contextmanager
def worker(bank: Bank) -> Iterator[WorkerProcess]:
    with run_worker(APP, bank.app.url, "--processes", "2", "--concurrency", "6", "--lease", "2s") as process:
        yield process


def check(bank: Bank, faults: int, outcomes: set[str]) -> None:
    """All is done, once, and the faults have struck where it matters: some blocks were begun in vain."""
    with worker(bank):
        done = "SELECT count(*) FROM holdfast.finished"
        eventually(lambda: bank.query(done) == [(bank.enqueued,)], 120, "all tasks are finished")
    assert bank.query("SELECT number, count(*) FROM bookings GROUP BY number HAVING count(*) <> 1") == []
    assert bank.booked() == bank.enqueued
    assert bank.query("SELECT sum(balance) FROM accounts") == [(bank.enqueued // 2,)]  # every other task pays
    results = (
        "SELECT DISTINCT convert_from(result, 'UTF8')::integer AS r FROM holdfast.finished WHERE state = 'succeeded'"
    )
    assert [number for (number,) in bank.query(f"{results} ORDER BY r")] == list(range(bank.enqueued))
    in_vain = int(bank.query("SELECT last_value FROM begun")[0][0]) - bank.enqueued
    ended = dict(bank.query("SELECT outcome, count(*) FROM holdfast.attempts GROUP BY outcome"))
    print(f"{faults} faults, {bank.enqueued} tasks, {in_vain} blocks in vain, claims that ended otherwise: {ended}")
    assert in_vain >= faults / 2
    assert outcomes & set(ended)


def test_killed_workers_write_each_row_once(bank: Bank) -> None:
    kills = 0
    while kills < KILLS:
        with worker(bank) as process:
            bank.work_on()
            os.kill(bank.random.choice(process.children()), signal.SIGKILL)
            bank.work_on()
            process.kill_all()
            kills += 2
    check(bank, kills, {"worker_lost", "lease_expired"})


@pytest.mark.long
def test_workers_that_stood_still_beyond_their_lease_write_each_row_once(bank: Bank) -> None:
    with worker(bank) as one, worker(bank) as other:
        for _ in range(FREEZES):
            victim = bank.random.choice([one, other])
            held = _frozen(bank, victim)
            eventually(partial(bank.has_lost, victim, held), 60, "others take over")
            bank.work_on()
            _signal(victim, signal.SIGCONT)
            bank.work_on()
    check(bank, FREEZES, {"lease_expired"})


def _frozen(bank: Bank, victim: WorkerProcess) -> set[tuple[Any, ...]]:
    """The claims of a worker that was stopped while it had some."""
    while True:
        bank.work_on()
        _signal(victim, signal.SIGSTOP)
        held = bank.claims(victim)
        if held:
            return held
        _signal(victim, signal.SIGCONT)


def _signal(process: WorkerProcess, number: int) -> None:
    for pid in [process.pid, *process.children()]:
        os.kill(pid, number)
