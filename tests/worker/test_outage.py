"""A store that does not answer for a while."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast import Holdfast
from holdfast.core.task import State
from tests.support import eventually
from tests.worker.helpers import enqueue_many, in_state, outcomes, working


def test_a_worker_goes_on_where_it_was_after_an_outage(jobs: Holdfast, url: str, tmp_path: Path) -> None:
    tasks = enqueue_many(jobs, 30, "sleeps", 0.1)
    jobs.close()
    with working(url, "--concurrency", "5", "--lease", "60s") as worker:
        blocker = apsw.Connection(str(tmp_path / "tasks.db"))
        blocker.set_busy_timeout(10_000)
        eventually(lambda: blocker.execute("SELECT count(*) FROM tasks WHERE state = 'succeeded'").get >= 5, 20)
        blocker.execute("BEGIN IMMEDIATE")
        try:
            eventually(lambda: "the store does not answer, trying again" in worker.output(), 60)
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
        for task in tasks:
            in_state(task, State.SUCCEEDED)
        assert {tuple(outcomes(task)) for task in tasks} == {("succeeded",)}
        assert "the store answers again" in worker.output()
