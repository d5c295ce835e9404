"""Find: newest first, by any filter, page by page to the end."""

from __future__ import annotations

from typing import Any

from holdfast.core import lifecycle
from holdfast.core.task import Failure, State
from holdfast.stores.contract import Query
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true, only
from holdfast.testing.kit.kit import Kit, ack, give_up

group = Group("find")


async def _found(kit: Kit, **filters: Any) -> list[str]:
    return [task.task_id for task in (await kit.store.find(Query(**filters))).tasks]


@group.case
async def newest_first(kit: Kit) -> None:
    """Tasks come newest first."""
    ids = []
    for _ in range(3):
        ids += await kit.enqueue()
        kit.clock.advance(1)
    expect("found", await _found(kit), ids[::-1])


@group.case
async def by_state(kit: Kit) -> None:
    """Only tasks in one of the states are found."""
    await kit.enqueue()
    done = await kit.claim(queue="a")
    await kit.apply(ack(done))
    dead = await kit.dead_letter(queue="b")
    states = frozenset({State.SUCCEEDED, State.DEAD_LETTERED})
    expect("two states", await _found(kit, states=states), [dead, done.task_id])
    expect("one state", await _found(kit, states=frozenset({State.SUCCEEDED})), [done.task_id])
    expect("no task", await _found(kit, states=frozenset({State.BLOCKED})), [])


@group.case
async def by_queue_and_type(kit: Kit) -> None:
    """Queue and type restrict, alone and together."""
    await kit.enqueue()
    [queued] = await kit.enqueue(queue="q")
    [both] = await kit.enqueue(queue="q", type="kit.t")
    [typed] = await kit.enqueue(type="kit.t")
    expect("by queue", await _found(kit, queue="q"), [both, queued])
    expect("by type", await _found(kit, type="kit.t"), [typed, both])
    expect("by both", await _found(kit, queue="q", type="kit.t"), [both])


@group.case
async def by_worker(kit: Kit) -> None:
    """The tasks that a worker holds are found by its id."""
    await kit.enqueue(2)
    mine = await kit.reserve_one(worker_id="w-1")
    await kit.reserve(worker_id="w-2")
    found = await _found(kit, worker_id="w-1", states=frozenset({State.CLAIMED}))
    expect("found", found, [mine.task_id])


@group.case
async def by_error_type(kit: Kit) -> None:
    """Tasks whose last attempt failed with an error are found by the error's type."""
    dead = await kit.dead_letter()
    other = await kit.claim()
    change = lifecycle.fail(
        other.task_id,
        other.token,
        Failure("builtins.KeyError", "x"),
        attempt=1,
        policy=other.policy,
        retryable=False,
        random_unit=0.0,
    )
    await kit.apply(change)
    expect("ValueError", await _found(kit, error_type="builtins.ValueError"), [dead])
    expect("KeyError", await _found(kit, error_type="builtins.KeyError"), [other.task_id])
    expect("none", await _found(kit, error_type="builtins.OSError"), [])


@group.case
async def pages_to_the_end(kit: Kit) -> None:
    """Page after page gives every task once, though new ones arrive, and ends without a cursor."""
    ids = await kit.enqueue(10)
    query, found = Query(limit=3), []
    for _ in range(10):
        page = await kit.store.find(query)
        expect_true("a page has at most `limit` tasks", len(page.tasks) <= 3)
        found += [task.task_id for task in page.tasks]
        if page.cursor is None:
            break
        kit.clock.advance(1)
        await kit.enqueue()
        query = Query(limit=3, cursor=page.cursor)
    expect("found", sorted(found, reverse=True), ids[::-1])


@group.case
async def pages_within_a_filter(kit: Kit) -> None:
    """A cursor goes on within the same filter."""
    wanted = await kit.enqueue(5, type="kit.t")
    await kit.enqueue(5)
    first = await kit.store.find(Query(type="kit.t", limit=2))
    second = await kit.store.find(Query(type="kit.t", limit=5, cursor=first.cursor))
    found = [task.task_id for task in first.tasks + second.tasks]
    expect("found", found, wanted[::-1])


@group.case
async def cursor_behind_each_task(kit: Kit) -> None:
    """Every task of a page has a cursor, with which the next page begins right behind it."""
    ids = (await kit.enqueue(6))[::-1]
    page = await kit.store.find(Query(limit=4))
    expect("cursors", len(page.after), len(page.tasks))
    for place, cursor in enumerate(page.after, 1):
        expect(f"behind {place} tasks", await _found(kit, cursor=cursor), ids[place:])


@group.case
async def cursor_of_a_task_that_is_gone(kit: Kit) -> None:
    """A cursor holds when the task that it was made for matches no longer: nothing behind it is skipped."""
    ids = (await kit.enqueue(8))[::-1]
    ready = frozenset({State.READY})
    page = await kit.store.find(Query(states=ready, limit=4))
    for task_id in (ids[1], ids[3], ids[5]):
        await kit.apply(lifecycle.cancel(task_id))
    rest = [task_id for task_id in ids if task_id not in {ids[1], ids[3], ids[5]}]
    for place, cursor in enumerate(page.after, 1):
        behind = [task_id for task_id in rest if ids.index(task_id) >= place]
        expect(f"behind {place} tasks", await _found(kit, states=ready, cursor=cursor), behind)
    expect("behind the page", await _found(kit, states=ready, cursor=page.cursor), rest[2:])


@group.case
async def found_tasks_match_their_records(kit: Kit) -> None:
    """A found task says of its state what `get` says."""
    claim = await kit.claim(queue="a", priority=3)
    await kit.apply(give_up(claim))
    found = only("tasks found", (await kit.store.find(Query())).tasks)
    record = await kit.record(claim.task_id)
    expect("history", found.history, ())
    for name in (
        "type",
        "queue",
        "state",
        "priority",
        "attempt",
        "deliveries",
        "run_at_ms",
        "finished_at_ms",
        "reason",
    ):
        expect(name, getattr(found, name), getattr(record, name))
