"""Batches: one answer each, in order, one bad item never harms the others."""

from __future__ import annotations

import msgspec

from holdfast.core import lifecycle
from holdfast.core.task import Enqueued, Hold, State
from holdfast.stores.contract import MAX_BATCH
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import FOREIGN_TOKEN, LEASE_MS, Kit, ack, retry

group = Group("batches")


@group.case
async def empty_batches_do_nothing(kit: Kit) -> None:
    """A batch of nothing is answered with nothing."""
    expect("enqueue", await kit.store.enqueue([]), [])
    expect("apply", await kit.store.apply([]), [])
    expect("extend", await kit.store.extend([], LEASE_MS), [])
    expect("get", await kit.store.get([]), [])


@group.case
async def largest_batch_goes_all_the_way(kit: Kit) -> None:
    """A thousand tasks can be enqueued, reserved, extended, settled and read in one call each."""
    ids = await kit.enqueue(MAX_BATCH)
    claims = await kit.reserve(MAX_BATCH)
    expect("reserved in order", [claim.task_id for claim in claims], ids)
    answers = await kit.store.extend([Hold(claim.task_id, claim.token) for claim in claims], LEASE_MS)
    expect("extended", sum(answer.held for answer in answers), MAX_BATCH)
    verdicts = await kit.store.apply([ack(claim) for claim in claims])
    expect("applied", sum(verdict.applied for verdict in verdicts), MAX_BATCH)
    records = await kit.store.get(ids)
    expect("ids in order", [record and record.task_id for record in records], ids)
    expect("succeeded", (await kit.counts()).states.get(State.SUCCEEDED), MAX_BATCH)


@group.case
async def duplicates_inside_a_batch_are_one_task(kit: Kit) -> None:
    """Duplicates inside a batch count as sent one after the other."""
    task = kit.new_task()
    first, second = kit.new_task(request_id="r"), kit.new_task(request_id="r")
    conflicting = kit.new_task(request_id="r", payload=b"[]")
    answers = await kit.store.enqueue([task, task, first, second, conflicting])
    expect("created", [answer.created for answer in answers], [True, False, True, False, False])
    ids = [answer.task_id for answer in answers[:4]]
    expect("ids", ids, [task.task_id, task.task_id, first.task_id, first.task_id])
    expect_true("the last is a conflict", answers[4].conflict)
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 2)


@group.case
async def conflict_does_not_refuse_the_others(kit: Kit) -> None:
    """A conflicting task in a batch is refused alone."""
    await kit.enqueue(request_id="r")
    before, after = kit.new_task(), kit.new_task()
    answers = await kit.store.enqueue([before, kit.new_task(request_id="r", type="kit.other"), after])
    expect("first", answers[0], Enqueued(before.task_id))
    expect_true("second is a conflict", answers[1].conflict)
    expect("third", answers[2], Enqueued(after.task_id))
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 3)


@group.case
async def refused_change_does_not_stop_the_others(kit: Kit) -> None:
    """Stale and unknown changes between good ones are refused alone, in order."""
    await kit.enqueue(3)
    first, second, third = await kit.reserve(3)
    changes = [
        ack(first),
        msgspec.structs.replace(ack(second), token=FOREIGN_TOKEN),
        msgspec.structs.replace(ack(second), task_id=kit.ids.task_id()),
        lifecycle.replay(second.task_id),
        retry(third),
    ]
    verdicts = await kit.store.apply(changes)
    expect("reasons", [v.reason for v in verdicts], ["", "stale_claim", "unknown", "wrong_state", ""])
    states = [await kit.state(claim.task_id) for claim in (first, second, third)]
    expect("states", states, [State.SUCCEEDED, State.CLAIMED, State.RETRY_PENDING])


@group.case
async def changes_of_one_task_apply_in_order(kit: Kit) -> None:
    """Several changes of one task in a batch see each other's effect."""
    claim = await kit.claim()
    changes = [
        lifecycle.release(claim.task_id, claim.token),
        lifecycle.release(claim.task_id, claim.token),
        lifecycle.cancel(claim.task_id, "x"),
        lifecycle.cancel(claim.task_id, "y"),
        ack(claim),
    ]
    verdicts = await kit.store.apply(changes)
    answers = [(v.applied, v.repeated, v.reason) for v in verdicts]
    wanted = [(True, False, ""), (True, True, ""), (True, False, ""), (True, True, ""), (False, False, "stale_claim")]
    expect("verdicts", answers, wanted)
    expect("reason", (await kit.record(claim.task_id)).reason, "x")


@group.case
async def same_ack_twice_in_a_batch(kit: Kit) -> None:
    """The same ack twice in one batch: a success twice, one line of history."""
    claim = await kit.claim()
    verdicts = await kit.store.apply([ack(claim), ack(claim)])
    expect("verdicts", [(v.applied, v.repeated) for v in verdicts], [(True, False), (True, True)])
    expect("history", len((await kit.record(claim.task_id)).history), 1)


@group.case
async def payload_bytes_are_kept(kit: Kit) -> None:
    """Payloads come back byte by byte: unicode, escapes, zero bytes, 256 KiB, none at all."""
    big = b'{"x":"' + b"y" * (256 * 1024 - 8) + b'"}'
    payloads = ['{"ключ":"🐈 ä"}'.encode(), b'{"a":"\\u0000\\n\'\\""}', b"\x00\xff\xfe';--", big, b""]
    tasks = [kit.new_task(payload=payload) for payload in payloads]
    await kit.store.enqueue(tasks)
    records = await kit.store.get([task.task_id for task in tasks])
    expect("payloads in get", [record and record.payload for record in records], payloads)
    expect("payloads in reserve", [claim.payload for claim in await kit.reserve(5)], payloads)


@group.case
async def odd_names_are_data(kit: Kit) -> None:
    """Names, ids and reasons are data, never part of a statement or a pattern."""
    queue, request_id = "q.-:_9", "';DROP/**/TABLE/**/x;--%_*[a]{}\"\\$1"
    claim = await kit.claim(queue=queue, type="T.a:b-c", request_id=request_id, headers={"'": '"', "%": "\n"})
    await kit.apply(lifecycle.stop(claim.task_id, claim.token, "it's {over} %s"))
    record = await kit.record(claim.task_id)
    expect("reason", record.reason, "it's {over} %s")
    expect("request_id and headers", (record.request_id, record.headers), (request_id, {"'": '"', "%": "\n"}))
