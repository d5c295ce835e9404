"""Real producers and workers on three files while the partition map changes under them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.admin.partitions import spread
from holdfast.core.ids import partition_of
from holdfast.core.task import State
from holdfast.stores.open import open_store
from tests.sharded.harness import url_of
from tests.support import environment, eventually, run_worker
from tests.worker.helpers import runs

APP = "tests.worker.apps.jobs:app"
PRODUCER = """
import sys
from tests.worker.apps.jobs import make_app
url, log, batches = sys.argv[1:]
with make_app(url) as app:
    notes = app.task_types["notes"]
    for batch in range(int(batches)):
        handles = app.enqueue_many(notes.prepare(log) for _ in range(20))
        handles.append(notes.using(request_id=f"shared-{batch}").enqueue(log))
        for handle in handles:
            print(handle.task_id, flush=True)
"""
BATCHES = 60


def _produce(url: str, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRODUCER, url, str(log), str(BATCHES)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def _succeeded(url: str) -> int:
    async def count() -> int:
        store = open_store(url)
        try:
            return sum(queue.states.get(State.SUCCEEDED, 0) for queue in await store.counts())
        finally:
            await store.close()

    return asyncio.run(count())


def _spread(url: str, width: int) -> None:
    async def change() -> None:
        store = open_store(url)
        try:
            await spread(store, "default", width)
        finally:
            await store.close()

    asyncio.run(change())


@pytest.mark.slow
def test_spread_changes_under_load_lose_nothing_and_run_nothing_twice(tmp_path: Path) -> None:
    url, log = url_of(tmp_path), tmp_path / "runs"
    with (
        run_worker(APP, url, "--lease", "60s") as one,
        run_worker(APP, url, "--lease", "60s", "--processes", "2") as two,
    ):
        producers = [_produce(url, log) for _ in range(2)]
        for number, width in enumerate([3, 1, 2, 3, 2, 1, 3]):
            eventually(lambda number=number: _succeeded(url) > number * 250, 60)  # type: ignore[misc]
            _spread(url, width)
        acknowledged = {line for producer in producers for line in producer.communicate(timeout=60)[0].split()}
        assert [producer.returncode for producer in producers] == [0, 0]
        # Twenty a batch of each producer, and one a batch that both have asked for by the same request_id.
        assert len(acknowledged) == 2 * 20 * BATCHES + BATCHES
        eventually(lambda: _succeeded(url) == len(acknowledged), 60)
        assert "Traceback" not in one.output() + two.output()
    ran = runs(log)
    assert set(ran) == acknowledged
    assert Counter(ran.values()) == {1: len(acknowledged)}
    assert set(map(partition_of, acknowledged)) == {0, 1, 2}
