"""Real producers and workers on three files while the partition map changes under them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.admin.workers import spread
from holdfast.core.ids import partition_of
from holdfast.core.task import State
from holdfast.stores.open import open_store
from tests.sharded.harness import url_of
from tests.support import environment, eventually, run_worker
from tests.worker.helpers import runs

APP = "tests.worker.apps.jobs:app"
#: Records tasks until it is told to stop, and writes down each id once it is acknowledged.
PRODUCER = """
import itertools, pathlib, sys
from tests.worker.apps.jobs import make_app
url, log, acknowledged, stop = sys.argv[1:]
with make_app(url) as app, open(acknowledged, "w", buffering=1) as out:
    notes = app.task_types["notes"]
    for batch in itertools.count():
        if pathlib.Path(stop).exists():
            break
        for handle in app.enqueue_many(notes.prepare(log) for _ in range(20)):
            print("-", handle.task_id, file=out)
        print(batch, notes.using(request_id=f"shared-{batch}").enqueue(log).task_id, file=out)
"""
#: The last one is narrow: what lies in the partitions that the queue has left must be worked off too.
WIDTHS = (3, 1, 2, 3, 2, 3, 1)
#: How many tasks each producer records, at the least, between two changes.
STRETCH = 150


class Producer:
    """A process that records tasks."""

    def __init__(self, url: str, log: Path, number: int) -> None:
        self._file = log.with_name(f"acknowledged-{number}")
        arguments = [url, str(log), str(self._file), str(log.with_name("stop"))]
        self.process = subprocess.Popen([sys.executable, "-c", PRODUCER, *arguments], env=environment())

    def lines(self) -> list[tuple[str, str]]:
        """The batch ("-" for a task without request_id) and the id of every acknowledged task."""
        text = self._file.read_text() if self._file.exists() else ""
        whole = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [(batch, task_id) for batch, task_id in whole]

    def plain(self) -> list[str]:
        """The ids of the tasks without request_id, in the order in which they were recorded."""
        return [task_id for batch, task_id in self.lines() if batch == "-"]


def _on_store(url: str, width: int | None = None) -> int:
    """Spreads the queue, if a width is given; how many tasks have succeeded."""

    async def run() -> int:
        store = open_store(url)
        try:
            if width is not None:
                await spread(store, "default", width)
            return sum(queue.states.get(State.SUCCEEDED, 0) for queue in await store.counts())
        finally:
            await store.close()

    return asyncio.run(run())


def _change_under_load(url: str, producers: list[Producer], width: int) -> None:
    """Changes the map, and sees that every producer goes on and has come to go by the new one."""
    before = [len(producer.plain()) for producer in producers]
    _on_store(url, width)

    def caught_up() -> bool:
        recorded = [producer.plain() for producer in producers]
        enough = all(len(ids) >= start + STRETCH for ids, start in zip(recorded, before, strict=True))
        return enough and all(len(set(map(partition_of, ids[-width * 20 :]))) == width for ids in recorded)

    eventually(caught_up, 60, f"both producers go by a width of {width}")


@pytest.mark.long
def test_spread_changes_under_load_lose_nothing_and_run_nothing_twice(tmp_path: Path) -> None:
    url, log = url_of(tmp_path), tmp_path / "runs"
    options = ("--lease", "60s")
    with run_worker(APP, url, *options) as one, run_worker(APP, url, *options, "--processes", "2") as two:
        producers = [Producer(url, log, number) for number in range(2)]
        try:
            eventually(lambda: all(producer.plain() for producer in producers) and _on_store(url), 60)
            for width in WIDTHS:
                _change_under_load(url, producers, width)
            assert [producer.process.poll() for producer in producers] == [None, None]
            (tmp_path / "stop").touch()
            assert [producer.process.wait(60) for producer in producers] == [0, 0]
        finally:
            for producer in producers:
                producer.process.kill()
                producer.process.wait(10)
        acknowledged = {task_id for producer in producers for _, task_id in producer.lines()}
        eventually(lambda: _on_store(url) == len(acknowledged), 120)
        assert "Traceback" not in one.output() + two.output()
    ran = runs(log)
    assert set(ran) == acknowledged
    assert Counter(ran.values()) == {1: len(acknowledged)}
    _expect_one_task_a_request(producers)


def _expect_one_task_a_request(producers: list[Producer]) -> None:
    """Both have asked for the same request_ids, by different maps: each stands for one task."""
    first, second = ({batch: task_id for batch, task_id in p.lines() if batch != "-"} for p in producers)
    both = first.keys() & second.keys()
    assert len(both) >= len(WIDTHS)
    assert {batch: first[batch] for batch in both} == {batch: second[batch] for batch in both}
