"""Wait: a ring wakes a waiter, in this store and in another; silence ends with the timeout."""

from __future__ import annotations

import asyncio

from holdfast.core import lifecycle
from holdfast.stores.contract import UPKEEP_BELL, Store
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect
from holdfast.testing.kit import Kit, every_minute

group = Group("wait")

_SHORT_MS = 20
_LONG_MS = 20_000
#: A ring that is under way has arrived by then.
_QUIET_MS = 400


async def _rung_by_enqueue(kit: Kit, waiting: Store, bell: str, delay_ms: int = 0) -> bool:
    """Whether the waiter is woken; a ring before it listens may be lost, so tasks go on coming."""
    waiter = asyncio.create_task(waiting.wait([bell], _LONG_MS))
    for number in range(100):
        # Each is due sooner than those before it: the upkeep must be told.
        await kit.enqueue(delay_ms=delay_ms and delay_ms - number)
        done, _ = await asyncio.wait([waiter], timeout=0.1)
        if done:
            break
    return await waiter


@group.case
async def silence_ends_with_the_timeout(kit: Kit) -> None:
    """Nothing to do: False after the timeout."""
    expect("rung", await kit.store.wait(["default"], _SHORT_MS), False)


@group.case
async def other_queues_do_not_ring(kit: Kit) -> None:
    """A task in another queue is no reason to wake up."""
    waiter = asyncio.create_task(kit.store.wait(["default"], 10 * _SHORT_MS))
    await asyncio.sleep(0)
    await kit.enqueue(queue="other")
    expect("rung", await waiter, False)


@group.case
async def enqueue_rings(kit: Kit) -> None:
    """A new task wakes a waiter of its queue."""
    expect("rung", await _rung_by_enqueue(kit, kit.store, "default"), True)


@group.case
async def sooner_delay_rings_the_upkeep(kit: Kit) -> None:
    """A delayed task that is due before all others wakes the upkeep."""
    expect("rung", await _rung_by_enqueue(kit, kit.store, UPKEEP_BELL, 60_000), True)


@group.case
async def tick_rings(kit: Kit) -> None:
    """The task of a schedule's tick wakes a waiter of its queue."""
    waiter = asyncio.create_task(kit.store.wait(["default"], _LONG_MS))
    for version in range(1, 100):
        task = kit.new_task(request_id=f"tick-{version}")
        await kit.store.put_schedule("s", every_minute("s", version=version), version - 1, [task])
        done, _ = await asyncio.wait([waiter], timeout=0.1)
        if done:
            break
    expect("rung", await waiter, True)


@group.case
async def sooner_schedule_rings_the_upkeep(kit: Kit) -> None:
    """A schedule whose next tick comes before those of all others wakes the upkeep."""
    waiter = asyncio.create_task(kit.store.wait([UPKEEP_BELL], _LONG_MS))
    for number in range(100):
        tick_ms = kit.clock.now_ms() + 60_000 - number
        await kit.store.put_schedule(f"s-{number}", every_minute(f"s-{number}", next_at_ms=tick_ms), 0)
        done, _ = await asyncio.wait([waiter], timeout=0.1)
        if done:
            break
    expect("rung", await waiter, True)


@group.shared
async def enqueue_rings_in_another_store(kit: Kit) -> None:
    """A new task wakes a waiter in another opened store."""
    expect("rung", await _rung_by_enqueue(kit, await kit.another(), "default"), True)


@group.case
async def released_task_rings(kit: Kit) -> None:
    """A task that is handed back wakes a waiter of its queue."""
    waiter: asyncio.Task[bool] | None = None
    for _ in range(100):
        claim = await kit.claim()
        waiter = waiter or asyncio.create_task(kit.store.wait(["default"], _LONG_MS))
        await asyncio.sleep(0)
        await kit.apply(lifecycle.release(claim.task_id, claim.token))
        done, _ = await asyncio.wait([waiter], timeout=0.1)
        await kit.reserve()
        if done:
            break
    expect("rung", waiter is not None and await waiter, True)


@group.case
async def promote_rings_again_where_tasks_wait(kit: Kit) -> None:
    """The hearer of a ring died before it looked: the upkeep rings again for the task that still waits."""
    await kit.enqueue()
    while await kit.store.wait(["default"], _QUIET_MS):
        pass  # Heard, and nothing done about it.
    waiter = asyncio.create_task(kit.store.wait(["default"], _LONG_MS))
    for _ in range(100):
        await kit.promote()
        done, _ = await asyncio.wait([waiter], timeout=0.1)
        if done:
            break
    expect("rung", await waiter, True)


@group.case
async def promote_does_not_ring_without_need(kit: Kit) -> None:
    """Queues that are empty or paused are left alone by the upkeep."""
    await kit.enqueue(queue="paused")
    await kit.store.pause("paused", True)
    while await kit.store.wait(["default", "paused"], _QUIET_MS):
        pass
    waiter = asyncio.create_task(kit.store.wait(["default", "paused"], 10 * _SHORT_MS))
    await asyncio.sleep(0)
    await kit.promote()
    expect("rung", await waiter, False)
