"""Concurrency: many callers, two opened stores, still one task and one holder."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.core.lifecycle import Verdict
from holdfast.core.task import State
from holdfast.stores.contract import MAINTENANCE
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import Kit, ack, every_settlement

group = Group("concurrency")


@group.case
async def one_request_id_one_task(kit: Kit) -> None:
    """Fifty concurrent enqueues of one request_id make one task, and all are told its id."""
    tasks = [kit.new_task(request_id="order-42") for _ in range(50)]
    answers = await asyncio.gather(*(kit.add(task) for task in tasks))
    expect("ids told", len({answer.task_id for answer in answers}), 1)
    expect("created", sum(answer.created for answer in answers), 1)
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 1)


@group.shared
async def one_request_id_one_task_through_two_stores(kit: Kit) -> None:
    """Fifty concurrent enqueues of one request_id through two opened stores make one task."""
    stores = [kit.store, await kit.another()]
    tasks = [kit.new_task(request_id="order-42") for _ in range(50)]
    answers = await asyncio.gather(*(stores[n % 2].enqueue([task]) for n, task in enumerate(tasks)))
    expect("ids told", len({answer.task_id for [answer] in answers}), 1)
    expect("created", sum(answer.created for [answer] in answers), 1)


@group.shared
async def no_task_is_handed_out_twice(kit: Kit) -> None:
    """Twenty concurrent reserve calls through two opened stores share the tasks without overlap."""
    stores = [kit.store, await kit.another()]
    ids = await kit.enqueue(90)
    requests = [kit.request(5, worker_id=f"w-{n}") for n in range(20)]
    answers = await asyncio.gather(*(stores[n % 2].reserve(request) for n, request in enumerate(requests)))
    taken = Counter(task.task_id for answer in answers for task in answer.tasks)
    expect("handed out more than once", [task_id for task_id, times in taken.items() if times > 1], [])
    expect("handed out", set(taken), set(ids))


@group.shared
async def one_ack_takes_effect(kit: Kit) -> None:
    """The same ack sent at once through two stores is a success for all and takes effect once."""
    stores = [kit.store, await kit.another()]
    claim = await kit.claim()
    answers = await asyncio.gather(*(stores[n % 2].apply([ack(claim)]) for n in range(10)))
    expect("applied", [verdict.applied for [verdict] in answers], [True] * 10)
    expect("first ones", sum(not verdict.repeated for [verdict] in answers), 1)
    expect("history", len((await kit.record(claim.task_id)).history), 1)


@group.shared
async def two_endings_one_wins(kit: Kit) -> None:
    """Of an ack and a lost worker's requeue at once, one takes effect and the other is stale."""
    other = await kit.another()
    claim = await kit.claim()
    changes = every_settlement(claim)
    [acked], [lost] = await asyncio.gather(kit.store.apply([changes["ack"]]), other.apply([changes["lose"]]))
    expect("applied", sorted([acked.applied, lost.applied]), [False, True])
    state = State.SUCCEEDED if acked.applied else State.READY
    expect("state", await kit.state(claim.task_id), state)
    refused = lost if acked.applied else acked
    expect("the other", refused, Verdict(False, reason="stale_claim", state=state))


@group.shared
async def one_leader(kit: Kit) -> None:
    """Of ten that ask for a leadership at once through two stores, one gets it."""
    stores = [kit.store, await kit.another()]
    asked = (stores[n % 2].lead(MAINTENANCE, f"owner-{n}", 10_000) for n in range(10))
    answers = await asyncio.gather(*asked)
    expect("leaders", sum(answer.held for answer in answers), 1)
    expect("epochs", len({answer.epoch for answer in answers}), 1)
