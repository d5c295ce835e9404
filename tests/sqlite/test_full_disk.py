"""A full disk stops new tasks, never the end of running ones."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.task import Claimed, NewTask, State
from holdfast.errors import StoreFull
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Reserve, Retention, Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.kit import every_minute, next_version

IDS = IdSource(SystemClock().now_ms, os.urandom)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "holdfast-test", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def a_task() -> NewTask:
    return NewTask(task_id=IDS.task_id(), type="noop", queue="default", payload=b'{"filler":"%s"}' % (b"x" * 300))


async def fill(store: Store) -> list[str]:
    acknowledged: list[str] = []
    while len(acknowledged) < 200_000:
        batch = [a_task() for _ in range(100)]
        try:
            answers = await store.enqueue(batch)
        except StoreFull:
            return acknowledged
        acknowledged += [answer.task_id for answer in answers]
    raise AssertionError("the disk never became full")


async def claim(store: Store, count: int) -> list[Claimed]:
    request = Reserve(
        claim_id=IDS.claim_id(),
        worker_id="w",
        shares=[QueueShare("default", count)],
        max_tasks=count,
        lease_ms=60_000,
    )
    return (await store.reserve(request)).tasks


async def drain(store: Store) -> int:
    done = 0
    while tasks := await claim(store, 100):
        verdicts = await store.apply([lifecycle.ack(task.task_id, task.token, b'"done"') for task in tasks])
        assert all(verdict.applied for verdict in verdicts)
        done += len(tasks)
    return done


def test_a_full_disk_refuses_new_tasks_keeps_the_old_and_lets_all_of_them_finish(small_disk: Path) -> None:
    async def scenario() -> None:
        store = open_store(f"sqlite:///{small_disk}/holdfast.db")
        acknowledged = await fill(store)
        assert acknowledged
        with pytest.raises(StoreFull, match="disk is full"):
            await store.enqueue([a_task()])
        (counts,) = await store.counts()
        assert counts.states == {State.READY: len(acknowledged)}
        assert await drain(store) == len(acknowledged)
        await store.close()

    asyncio.run(scenario())


def test_new_tasks_are_taken_again_once_there_is_space(small_disk: Path) -> None:
    async def scenario() -> None:
        store = open_store(f"sqlite:///{small_disk}/holdfast.db")
        before = await fill(store)
        await asyncio.to_thread(resize, small_disk, "64m")
        (answer,) = await store.enqueue([a_task()])
        found = await store.get([answer.task_id, before[0], before[-1]])
        assert [task.state for task in found if task] == [State.READY] * 3
        await store.close()

    asyncio.run(scenario())


def test_a_full_disk_refuses_an_occurrence_as_a_whole_and_lets_its_schedule_be_paused(small_disk: Path) -> None:
    async def scenario() -> None:
        store = open_store(f"sqlite:///{small_disk}/holdfast.db")
        schedule, task = every_minute(next_at_ms=1), a_task()
        await documents.put_schedule(store, "nightly", schedule, 0)
        await fill(store)
        with pytest.raises(StoreFull):
            await documents.put_schedule(store, "nightly", next_version(schedule, next_at_ms=2), 1, [task])
        assert await documents.schedule(store, "nightly") == schedule
        assert await store.get([task.task_id]) == [None]
        assert await documents.put_schedule(store, "nightly", next_version(schedule, paused=True, next_at_ms=None), 1)
        await asyncio.to_thread(resize, small_disk, "64m")
        assert await documents.put_schedule(store, "nightly", every_minute(next_at_ms=2, version=3), 2, [task])
        assert [found.state for found in await store.get([task.task_id]) if found] == [State.READY]
        await store.close()

    asyncio.run(scenario())


def test_a_second_process_finds_everything_that_was_acknowledged(small_disk: Path) -> None:
    async def scenario() -> None:
        url = f"sqlite:///{small_disk}/holdfast.db"
        writer, reader = open_store(url), open_store(url)
        acknowledged = await fill(writer)
        found = await reader.get(acknowledged)
        assert all(found)
        await writer.close()
        await reader.close()

    asyncio.run(scenario())


async def _prune(store: Store) -> int:
    """What the leader does all the time."""
    leads = await store.lead(MAINTENANCE, "leader", 5_000)
    assert leads.held
    pruned = 0
    while some := await store.prune(leads.epoch, Retention(), 500):
        pruned += some
    return pruned


@pytest.mark.parametrize("result_bytes", [8, 1_000])
def test_a_full_disk_makes_room_by_itself(small_disk: Path, result_bytes: int) -> None:
    """Results of a minute ago go for what is new, also when settlements have used up all that was kept back."""

    async def scenario() -> None:
        clock = SteppedClock()
        store = open_store(f"sqlite:///{small_disk}/holdfast.db", clock=clock)
        result, left, refused = b'"%s"' % (b"x" * result_bytes), len(await fill(store)), 0
        running: list[Claimed] = []
        while left:
            try:
                running = running or await claim(store, 20)
                verdicts = await store.apply([lifecycle.ack(task.task_id, task.token, result) for task in running])
                assert all(verdict.applied for verdict in verdicts)
                left, running = left - len(running), []
            except StoreFull:
                refused += 1
                assert refused < 100, f"no room for the last {left} tasks"
                clock.advance(61_000)
                await _prune(store)
        clock.advance(61_000)
        await _prune(store)
        (answer,) = await store.enqueue([a_task()])
        assert answer.created
        assert len(await fill(store)) > 100
        await store.close()

    asyncio.run(scenario())
