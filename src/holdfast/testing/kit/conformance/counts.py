"""Counts: derived from the tasks, so they always add up."""

from __future__ import annotations

from holdfast.core import lifecycle
from holdfast.core.task import State
from holdfast.stores import documents
from holdfast.stores.contract import Query
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import Kit, ack, retry

group = Group("counts")


@group.case
async def empty_store_has_no_queues(kit: Kit) -> None:
    """A new store lists no queue."""
    expect("counts", await kit.store.counts(), [])


@group.case
async def each_state_of_each_queue(kit: Kit) -> None:
    """Counts tell how many tasks of a queue stand in each state, by queue name."""
    await kit.enqueue(2, queue="b")
    await kit.enqueue(3, queue="a", delay_ms=10)
    await kit.apply(lifecycle.cancel((await kit.enqueue(queue="b"))[0]))
    counts = await kit.store.counts()
    expect("queues", [entry.queue for entry in counts], ["a", "b"])
    numbers = [{state: number for state, number in entry.states.items() if number} for entry in counts]
    expect("states", numbers, [{State.SCHEDULED: 3}, {State.READY: 2, State.CANCELLED: 1}])


@group.case
async def counts_equal_what_find_finds(kit: Kit) -> None:
    """The counts of every state equal the number of tasks that `find` gives."""
    await kit.enqueue(9)
    claims = await kit.reserve(5)
    await kit.store.apply([ack(claims[0]), ack(claims[1]), retry(claims[2])])
    counts = await kit.counts()
    for state in State:
        page = await kit.store.find(Query(states=frozenset({state})))
        expect(f"{state}", len(page.tasks), counts.states.get(state, 0))


@group.case
async def oldest_ready_is_told(kit: Kit) -> None:
    """The age of the oldest ready task counts from when it became ready; None if none is ready."""
    await kit.enqueue(delay_ms=1_000)
    expect("none is ready", (await kit.counts()).oldest_ready_ms, None)
    kit.clock.advance(500)
    await kit.enqueue(priority=50)
    kit.clock.advance(700)
    await kit.enqueue()
    expect("oldest", (await kit.counts()).oldest_ready_ms, 700)


@group.case
async def paused_queue_is_listed(kit: Kit) -> None:
    """A paused queue is listed as such, with and without tasks, until it is resumed."""
    await documents.pause(kit.store, "empty", paused=True)
    expect("paused", (await kit.counts("empty")).paused, True)
    await documents.pause(kit.store, "empty", paused=False)
    expect("queues", [entry.queue for entry in await kit.store.counts()], [])
    await kit.enqueue()
    expect("paused", (await kit.counts()).paused, False)
