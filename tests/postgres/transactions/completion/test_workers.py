"""Blocks in a real worker: its heartbeats, and its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from tests.postgres.transactions.completion.desk import TABLE
from tests.postgres.transactions.completion.lingering import make_app
from tests.servers.postgres import PostgresServer
from tests.support import eventually, run_worker

APP = "tests.postgres.transactions.completion.lingering:app"
OPTIONS = ("--concurrency", "4", "--lease", "1s", "--grace", "500ms")


@pytest.fixture
def app(postgres_server: PostgresServer, database: str) -> Iterator[Holdfast]:
    postgres_server.query(TABLE, database=database)
    with make_app(postgres_server.url(database)) as app:
        yield app


def test_code_behind_the_block_goes_on_though_heartbeats_find_no_claim(app: Holdfast) -> None:
    with run_worker(APP, app.url, *OPTIONS) as worker:
        handle = app.task_types["goes_on"].enqueue(2.5)
        eventually(lambda: handle.status().state is State.SUCCEEDED, 20)
        eventually(lambda: "went on to the end" in worker.output(), 20)
        assert worker.stop() == 0
        for words in ("claim is lost", "lease ran out", "refused"):
            assert words not in worker.output()


@pytest.mark.parametrize("name", ["stays", "stays_in_thread"])
def test_a_worker_that_stops_rolls_back_and_hands_back(
    app: Holdfast, postgres_server: PostgresServer, database: str, name: str
) -> None:
    open_blocks = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL"
    with run_worker(APP, app.url, *OPTIONS) as worker:
        handle = app.task_types[name].enqueue()
        eventually(lambda: handle.status().state is State.CLAIMED, 20)
        eventually(lambda: postgres_server.query(open_blocks, database=database), 20)
        assert worker.stop() == 0
        assert "SIGSEGV" not in worker.output()
    assert handle.status().state is State.READY
    assert [attempt.outcome for attempt in handle.history()] == ["released"]
    assert postgres_server.query("SELECT * FROM written", database=database) == []
