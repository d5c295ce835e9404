"""Wait: a wake-up wakes a waiter, in this store and in another; without one the wait ends with the timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.core import lifecycle
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE_WAKEUP, Store
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import Kit, every_minute

group = Group("wait")

_SHORT_MS = 20
_LONG_MS = 20_000
#: A wake-up that is under way has arrived by then.
_QUIET_MS = 400
#: How often something is done that should wake the waiter: a wake-up before it listens may be lost.
_TRIES = 100


async def _woken(waiting: Store, wakeup: str, act: Callable[[int], Awaitable[object]]) -> bool:
    """Whether doing this, again and again, wakes a waiter; one whose wait ends without a wake-up waits again."""
    waiter = asyncio.create_task(waiting.wait([wakeup], _LONG_MS))
    for number in range(_TRIES):
        await act(number)
        if await _is_woken(waiter):
            return True
        if waiter.done():
            waiter = asyncio.create_task(waiting.wait([wakeup], _LONG_MS))
    return await waiter


async def _is_woken(waiter: asyncio.Task[bool]) -> bool:
    """A store may end a wait early, without a wake-up, as long as it cannot hear one: that is no failure yet."""
    done, _ = await asyncio.wait([waiter], timeout=0.1)
    return bool(done) and await waiter


async def _settle_down(kit: Kit, *wakeups: str) -> None:
    """Takes every wake-up that is under way."""
    while await kit.store.wait(wakeups, _QUIET_MS):
        pass


@group.case
async def silence_ends_with_the_timeout(kit: Kit) -> None:
    """Nothing to do: False after the timeout."""
    expect("notified", await kit.store.wait(["default"], _SHORT_MS), False)


@group.case
async def other_queues_do_not_notify(kit: Kit) -> None:
    """A task in another queue is no reason to wake up."""
    waiter = asyncio.create_task(kit.store.wait(["default"], 10 * _SHORT_MS))
    await asyncio.sleep(0)
    await kit.enqueue(queue="other")
    expect("notified", await waiter, False)


@group.case
async def enqueue_notifies(kit: Kit) -> None:
    """A new task wakes a waiter of its queue."""
    expect("notified", await _woken(kit.store, "default", lambda _: kit.enqueue()), True)


@group.case
async def sooner_delay_notifies_the_maintenance(kit: Kit) -> None:
    """A delayed task that is due before all others wakes the maintenance; one that is due after another does not."""
    await kit.enqueue(delay_ms=60_000)
    await _settle_down(kit, MAINTENANCE_WAKEUP)
    waiter = asyncio.create_task(kit.store.wait([MAINTENANCE_WAKEUP], _QUIET_MS))
    await asyncio.sleep(0)
    for number in range(3):
        await kit.enqueue(delay_ms=60_001 + number)
    expect("notified by later ones", await waiter, False)
    # Each is due sooner than those before it.
    woken = await _woken(kit.store, MAINTENANCE_WAKEUP, lambda number: kit.enqueue(delay_ms=59_999 - number))
    expect("notified by sooner ones", woken, True)


@group.case
async def occurrence_notifies(kit: Kit) -> None:
    """The task of a schedule's occurrence wakes a waiter of its queue."""

    async def fire(number: int) -> None:
        task = kit.new_task(request_id=f"occurrence-{number}")
        await documents.put_schedule(kit.store, "s", every_minute("s", version=number + 1), number, [task])

    expect("notified", await _woken(kit.store, "default", fire), True)


@group.case
async def sooner_schedule_notifies_the_maintenance(kit: Kit) -> None:
    """A schedule whose next occurrence comes before all others wakes the maintenance; a later one does not."""

    async def put(number: int) -> None:
        at_ms = kit.clock.now_ms() + 60_000 - number
        await documents.put_schedule(kit.store, f"s{number}", every_minute(f"s{number}", next_at_ms=at_ms), 0)

    await put(0)
    await _settle_down(kit, MAINTENANCE_WAKEUP)
    waiter = asyncio.create_task(kit.store.wait([MAINTENANCE_WAKEUP], _QUIET_MS))
    await asyncio.sleep(0)
    for number in range(3):
        await put(-1 - number)
    expect("notified by later ones", await waiter, False)
    expect("notified by sooner ones", await _woken(kit.store, MAINTENANCE_WAKEUP, lambda number: put(1 + number)), True)


@group.shared
async def enqueue_notifies_in_another_store(kit: Kit) -> None:
    """A new task wakes a waiter in another opened store."""
    expect("notified", await _woken(await kit.another(), "default", lambda _: kit.enqueue()), True)


@group.case
async def released_task_notifies(kit: Kit) -> None:
    """A task that is released wakes a waiter of its queue."""
    waiter: asyncio.Task[bool] | None = None
    for _ in range(_TRIES):
        claim = await kit.claim()
        if waiter is None or waiter.done():
            waiter = asyncio.create_task(kit.store.wait(["default"], _LONG_MS))
        await asyncio.sleep(0)
        await kit.apply(lifecycle.release(claim.task_id, claim.token))
        woken = await _is_woken(waiter)
        await kit.reserve()
        if woken:
            break
    expect("notified", waiter is not None and await waiter, True)


@group.case
async def resumed_queue_notifies(kit: Kit) -> None:
    """A queue with waiting tasks that is resumed wakes a waiter."""
    await documents.pause(kit.store, "default", True)
    await kit.enqueue()
    await _settle_down(kit, "default")

    async def resume(_number: int) -> None:
        for paused in (True, False):
            await documents.pause(kit.store, "default", paused)

    expect("notified", await _woken(kit.store, "default", resume), True)


@group.case
async def resumed_queue_with_a_step_of_its_own_notifies(kit: Kit) -> None:
    """The same for a queue whose settings stay: its document is replaced, not removed."""
    await documents.set_step(kit.store, "default", 5_000)
    await resumed_queue_notifies(kit)


@group.case
async def promote_notifies_again_where_tasks_wait(kit: Kit) -> None:
    """The notified worker died before it claimed: the maintenance notifies again for the task that still waits."""
    await kit.enqueue()
    await _settle_down(kit, "default")
    expect("notified", await _woken(kit.store, "default", lambda _: kit.promote()), True)


@group.case
async def promote_does_not_notify_without_need(kit: Kit) -> None:
    """Queues that are empty or paused are left alone by the maintenance."""
    await kit.enqueue(queue="paused")
    await documents.pause(kit.store, "paused", True)
    await _settle_down(kit, "default", "paused")
    waiter = asyncio.create_task(kit.store.wait(["default", "paused"], 10 * _SHORT_MS))
    await asyncio.sleep(0)
    await kit.promote()
    expect("notified", await waiter, False)
