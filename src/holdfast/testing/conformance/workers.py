"""Workers: listed by what they say of themselves, alive as long as they say it."""

from __future__ import annotations

from typing import Any

from holdfast.stores.contract import WorkerRecord
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect, only
from holdfast.testing.kit import Kit

group = Group("workers")


def _worker(worker_id: str = "w-1", **fields: Any) -> WorkerRecord:
    plain = {"host": "h", "pid": 7, "version": "1", "queues": ("a", "b"), "types": ("kit.work",)}
    return WorkerRecord(worker_id=worker_id, **{**plain, "processes": 2, "concurrency": 50, "running": 3, **fields})


@group.case
async def announced_worker_is_listed(kit: Kit) -> None:
    """A worker is listed as it announced itself, with the store's times."""
    now_ms = kit.clock.now_ms()
    await kit.store.announce(_worker(), 30_000)
    wanted = _worker(started_at_ms=now_ms, seen_at_ms=now_ms, alive=True)
    expect("workers", await kit.store.workers(), [wanted])


@group.case
async def later_announcement_replaces_the_first(kit: Kit) -> None:
    """A worker that announces itself again is listed once, with the new numbers and its first start."""
    started_ms = kit.clock.now_ms()
    await kit.store.announce(_worker(), 30_000)
    kit.clock.advance(10_000)
    await kit.store.announce(_worker(running=9, status="draining"), 30_000)
    worker = only("workers", await kit.store.workers())
    expect("running and status", (worker.running, worker.status), (9, "draining"))
    expect("times", (worker.started_at_ms, worker.seen_at_ms), (started_ms, kit.clock.now_ms()))


@group.case
async def silent_worker_is_not_alive(kit: Kit) -> None:
    """A worker that was not heard of within its time to live is listed as not alive."""
    await kit.store.announce(_worker("w-1"), 10_000)
    await kit.store.announce(_worker("w-2"), 50_000)
    kit.clock.advance(10_001)
    expect("alive", [(w.worker_id, w.alive) for w in await kit.store.workers()], [("w-1", False), ("w-2", True)])


@group.case
async def leaving_worker_is_taken_off(kit: Kit) -> None:
    """A time to live of 0 takes a worker off the list, twice without harm."""
    await kit.store.announce(_worker(), 10_000)
    await kit.store.announce(_worker(), 0)
    await kit.store.announce(_worker(), 0)
    expect("workers", await kit.store.workers(), [])


@group.case
async def workers_come_by_id(kit: Kit) -> None:
    """Workers are listed by id."""
    for worker_id in ("w-2", "w-3", "w-1"):
        await kit.store.announce(_worker(worker_id), 10_000)
    expect("ids", [worker.worker_id for worker in await kit.store.workers()], ["w-1", "w-2", "w-3"])
