"""Workers: listed by what they say of themselves, alive as long as they say it."""

from __future__ import annotations

from typing import Any

from holdfast.stores import documents
from holdfast.stores.contract import Retention, WorkerOrders, WorkerRecord
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, only
from holdfast.testing.kit.kit import Kit

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


@group.case
async def orders_are_told(kit: Kit) -> None:
    """Orders are told with every announcement of the worker that they are for, until there are others."""
    expect("without orders", await kit.store.announce(_worker(), 10_000), None)
    await documents.order(kit.store, "w-1", WorkerOrders(concurrency=7))
    for _ in range(2):
        expect("told", await kit.store.announce(_worker(running=1), 10_000), WorkerOrders(concurrency=7))
    await documents.order(kit.store, "w-1", WorkerOrders(concurrency=9))
    expect("others", await kit.store.announce(_worker(), 10_000), WorkerOrders(concurrency=9))
    await documents.order(kit.store, "w-1", WorkerOrders())
    expect("as it was started", await kit.store.announce(_worker(), 10_000), WorkerOrders())


@group.case
async def orders_are_for_one_worker(kit: Kit) -> None:
    """Orders for one worker are not told to another, and leave what is listed as it is."""
    await kit.store.announce(_worker("w-1"), 10_000)
    await kit.store.announce(_worker("w-2"), 10_000)
    listed = await kit.store.workers()
    await documents.order(kit.store, "w-1", WorkerOrders(concurrency=7))
    expect("another", await kit.store.announce(_worker("w-2"), 10_000), None)
    expect("workers", await kit.store.workers(), listed)


@group.case
async def orders_for_an_unknown_worker_are_pruned(kit: Kit) -> None:
    """Orders for a worker that is not on the list put none there, and go with the next pruning."""
    await kit.store.announce(_worker("w-2"), 10_000)
    for worker_id in ("w-1", "w-2"):
        await documents.order(kit.store, worker_id, WorkerOrders(concurrency=7))
    expect("workers", [worker.worker_id for worker in await kit.store.workers()], ["w-2"])
    await kit.prune(Retention())
    expect("orders", await documents.one(kit.store, documents.ORDERS, "w-1"), None)
    expect("told", await kit.store.announce(_worker(), 10_000), None)
    expect("orders of another", await kit.store.announce(_worker("w-2"), 10_000), WorkerOrders(concurrency=7))


@group.case
async def orders_go_with_the_worker(kit: Kit) -> None:
    """A worker that leaves takes its orders along: one of the same name that comes after it has none."""
    await kit.store.announce(_worker(), 10_000)
    await documents.order(kit.store, "w-1", WorkerOrders(concurrency=7))
    expect("told while leaving", await kit.store.announce(_worker(), 0), None)
    expect("orders", await documents.one(kit.store, documents.ORDERS, "w-1"), None)
    expect("told", await kit.store.announce(_worker(), 10_000), None)


@group.case
async def orders_wait_for_a_silent_worker(kit: Kit) -> None:
    """A worker that was not heard of for a while hears its orders when it is back, until its record is pruned."""
    await kit.store.announce(_worker(), 10_000)
    kit.clock.advance(20_000)
    await documents.order(kit.store, "w-1", WorkerOrders(concurrency=7))
    expect("told", await kit.store.announce(_worker(), 10_000), WorkerOrders(concurrency=7))
    kit.clock.advance(2 * 86_400_000)
    await kit.prune(Retention())
    expect("workers", await kit.store.workers(), [])
    expect("orders after the pruning", await documents.one(kit.store, documents.ORDERS, "w-1"), None)
    expect("told after the pruning", await kit.store.announce(_worker(), 10_000), None)
