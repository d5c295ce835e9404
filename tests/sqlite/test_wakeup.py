"""Wake-ups of a database: any number of names, with a few descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.stores.sqlite import wakeup
from holdfast.stores.sqlite.wakeup import Wakeups
from tests.support import run_worker


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted there")
def test_names_that_were_waited_for_once_do_not_use_up_the_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "MAX_OPEN", 10)
    wakeups = Wakeups(str(tmp_path / "tasks.db"))

    async def scenario() -> None:
        before = _descriptors()
        for n in range(30):
            await wakeups.wait([f"{n}-{m}" for m in range(4)], 1)
        assert _descriptors() <= before + 10

    asyncio.run(scenario())
    wakeups.close()


@pytest.mark.parametrize("notifying", ["this", "other"])
def test_a_waiter_is_woken_however_many_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notifying: str
) -> None:
    monkeypatch.setattr(wakeup, "MAX_OPEN", 10)
    this, other = Wakeups(str(tmp_path / "tasks.db")), Wakeups(str(tmp_path / "tasks.db"))

    async def scenario() -> None:
        waiting = asyncio.create_task(this.wait(["q"], 10_000))
        await asyncio.sleep(0)
        await this.wait([str(n) for n in range(30)], 1)
        {"this": this, "other": other}[notifying].notify(["q"])
        assert await waiting

    asyncio.run(scenario())
    this.close()
    other.close()


def test_without_descriptors_wakeups_are_lost_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    wakeups = Wakeups(str(tmp_path / "tasks.db"))
    monkeypatch.setattr(os, "open", none_left)
    wakeups.notify(["q"])  # as after a commit, which has to be told of
    assert asyncio.run(wakeups.wait(["q"], 1)) is False
    wakeups.close()


@pytest.mark.parametrize("deleted", ["folder", "pipe"])
def test_pipes_that_were_deleted_are_made_again_while_they_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    """As by a program that cleans up temporary files: a waiter is woken by another process again."""
    monkeypatch.setattr(wakeup, "_LOOK_MS", 5)
    this, other = Wakeups(str(tmp_path / "tasks.db")), Wakeups(str(tmp_path / "tasks.db"))
    folder = tmp_path / "tasks.db-wakeups"

    async def scenario() -> None:
        waiting = asyncio.create_task(this.wait(["q", "r"], 60_000))
        await asyncio.sleep(0)
        for pipe in folder.iterdir():
            pipe.unlink()
        if deleted == "folder":
            folder.rmdir()
        while not waiting.done():
            other.notify(["q"])
            await asyncio.sleep(0)
        assert await waiting

    asyncio.run(asyncio.wait_for(scenario(), 30))
    this.close()
    other.close()


def test_a_wait_takes_one_descriptor_a_queue_and_a_part_of_all_at_most(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wakeups = Wakeups(str(tmp_path / "tasks.db"))

    async def scenario() -> None:
        before = _descriptors()
        waiting = asyncio.create_task(wakeups.wait([str(n) for n in range(30)], 60_000))
        await asyncio.sleep(0)
        assert _descriptors() == before + 30
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            assert await wakeups.wait([f"more-{n}" for n in range(600)], 1) is False
            assert _descriptors() <= before + 64
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wakeups.notify(["29"])
        assert await waiting

    asyncio.run(scenario())
    wakeups.close()


def test_many_waiters_for_one_name_in_one_loop_are_woken_one_by_one(tmp_path: Path) -> None:
    wakeups = Wakeups(str(tmp_path / "tasks.db"))

    async def scenario() -> None:
        waiting = {asyncio.create_task(wakeups.wait(["q"], 60_000)) for _ in range(5)}
        await asyncio.sleep(0)
        while waiting:
            wakeups.notify(["q"])
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
        wakeups.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_wakeup_does_not_wait_for_a_thread_that_is_in_a_signal_handler(tmp_path: Path) -> None:
    this, other = Wakeups(str(tmp_path / "tasks.db")), Wakeups(str(tmp_path / "tasks.db"))

    async def scenario() -> None:
        waiting = asyncio.create_task(this.wait(["q"], 10_000))
        await asyncio.sleep(0)
        with this._lock:  # as its own thread, interrupted there, would
            this.notify(["q"])
        assert await waiting

    asyncio.run(scenario())
    this.close()
    other.close()


OPENS_FILES = """
import os
from holdfast import Holdfast

app = Holdfast()

@app.task
def opens(number: int) -> int:
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
    for descriptor in descriptors:
        os.close(descriptor)
    return len(descriptors)
"""


def test_a_worker_of_six_hundred_queues_leaves_its_tasks_descriptors(tmp_path: Path) -> None:
    """With the soft limit that a shell gives: the worker raises it, and its wake-ups take a part of it only."""
    (tmp_path / "files.py").write_text(OPENS_FILES)
    url = f"sqlite:///{tmp_path}/holdfast.db"
    queues = ",".join(["default", *(f"q{n}" for n in range(600))])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, hard), hard))
    try:
        with Holdfast(url) as app, run_worker("files:app", url, "--queues", queues, cwd=tmp_path):
            opens = app.task(name="files.opens")(_opens)
            assert [opens.enqueue(number).result(90) for number in (1, 700)] == [1, 700]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _opens(number: int) -> int:
    raise NotImplementedError(number)  # run by the worker
