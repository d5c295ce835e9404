"""A store that does not answer for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from tests.servers.postgres_shared import shared_durable_postgres
from tests.servers.shared import shared_durable_server
from tests.support import eventually
from tests.worker.helpers import enqueue_many, in_state, outcomes, working

pytestmark = pytest.mark.alone


@contextmanager
def outage(url: str, directory: Path) -> Iterator[None]:
    """SQLite is locked by another process; a server is dead, and comes back with its data."""
    if not url.startswith("sqlite"):
        server = shared_durable_server("redis") if url.startswith("redis") else shared_durable_postgres()
        server.kill()
        try:
            yield
        finally:
            server.heal()
        return
    blocker = apsw.Connection(str(directory / "tasks.db"))
    blocker.set_busy_timeout(10_000)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        blocker.execute("ROLLBACK")
        blocker.close()


def test_a_worker_goes_on_where_it_was_after_an_outage(jobs: Holdfast, url: str, tmp_path: Path) -> None:
    tasks = enqueue_many(jobs, 30, "sleeps", 0.1)
    with working(url, "--concurrency", "5", "--lease", "60s") as worker:
        in_state(tasks[5], State.SUCCEEDED)
        jobs.close()
        with outage(url, tmp_path):
            eventually(lambda: "the store does not answer, trying again" in worker.output(), 60)
        for task in tasks:
            in_state(task, State.SUCCEEDED)
        assert {tuple(outcomes(task)) for task in tasks} == {("succeeded",)}
        assert "the store answers again" in worker.output()
