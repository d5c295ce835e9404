"""Enqueue: recorded once, however often it is sent."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.ids import partition_of
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Enqueued, NewTask, State
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import Kit, ack

group = Group("enqueue")


@group.case
async def new_task_is_ready(kit: Kit) -> None:
    """A task without a delay is ready at once, with nothing used up."""
    task = kit.new_task()
    expect("answer", await kit.add(task), Enqueued(task.task_id))
    record = await kit.record(task.task_id)
    expect("state", record.state, State.READY)
    expect("attempt and deliveries", (record.attempt, record.deliveries), (0, 0))
    expect("history", record.history, ())
    expect("times", (record.created_at_ms, record.run_at_ms), (kit.clock.now_ms(), kit.clock.now_ms()))


@group.case
async def envelope_is_kept_as_it_was_sent(kit: Kit) -> None:
    """What the producer sent is what `get` and `reserve` give."""
    policy = RunPolicy(max_attempts=7, base_ms=12, cap_ms=345, jitter=0.25, give_up_on=("a.B",), retry_on=("c.D",))
    policy = replace(policy, result_ttl_ms=1, dead_letter_ttl_ms=0)
    fields = {"type": "mail.send", "queue": "mail", "payload": b'{"to":"x"}', "priority": 9, "policy": policy}
    task = kit.new_task(**fields, headers={"trace": "00-ab", "ключ": "значение"}, request_id="order-42")
    await kit.add(task)
    record = await kit.record(task.task_id)
    claimed = await kit.reserve_one(queues=("mail",))
    for name in ("type", "queue", "payload", "priority", "policy", "headers"):
        expect(f"{name} in get", getattr(record, name), getattr(task, name))
        expect(f"{name} in reserve", getattr(claimed, name), getattr(task, name))
    expect("request_id", record.request_id, "order-42")
    expect("created_at_ms in reserve", claimed.created_at_ms, record.created_at_ms)


@group.case
async def repeated_task_id_gives_the_same_task(kit: Kit) -> None:
    """The same task sent again after a lost reply is answered with the task that is there."""
    task = kit.new_task()
    await kit.add(task)
    kit.clock.advance(5)
    expect("second answer", await kit.add(task), Enqueued(task.task_id, created=False))
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 1)


@group.case
async def repeated_request_id_gives_the_same_task(kit: Kit) -> None:
    """A new task_id with a known request_id of the queue gives the first task."""
    first, second = kit.new_task(request_id="r-1"), kit.new_task(request_id="r-1")
    await kit.add(first)
    expect("second answer", await kit.add(second), Enqueued(first.task_id, created=False))
    expect("second id", await kit.store.get([second.task_id]), [None])
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 1)


@group.case
async def request_id_counts_per_queue(kit: Kit) -> None:
    """The same request_id in two queues stands for two tasks."""
    first, second = kit.new_task(request_id="r-1"), kit.new_task(request_id="r-1", queue="other")
    answers = await kit.store.enqueue([first, second])
    expect("answers", answers, [Enqueued(first.task_id), Enqueued(second.task_id)])


@group.case
async def tasks_without_request_id_are_never_merged(kit: Kit) -> None:
    """Equal tasks without a request_id stay apart."""
    ids = await kit.enqueue(3)
    expect("different ids", len(set(ids)), 3)
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 3)


@group.case
async def request_id_with_another_payload_is_a_conflict(kit: Kit) -> None:
    """A known request_id with another payload is told apart, and nothing is recorded."""
    first = kit.new_task(request_id="r-1", payload=b'{"n":1}')
    second = kit.new_task(request_id="r-1", payload=b'{"n":2}')
    await kit.add(first)
    answer = await kit.add(second)
    expect_true("the answer is a conflict", answer.conflict)
    expect("created", answer.created, False)
    expect("second id", await kit.store.get([second.task_id]), [None])
    expect("payload of the first", (await kit.record(first.task_id)).payload, b'{"n":1}')


@group.case
async def request_id_with_another_type_is_a_conflict(kit: Kit) -> None:
    """A known request_id with another type is told apart, and nothing is recorded."""
    first, second = kit.new_task(request_id="r-1"), kit.new_task(request_id="r-1", type="kit.other")
    await kit.add(first)
    expect_true("the answer is a conflict", (await kit.add(second)).conflict)
    expect("second id", await kit.store.get([second.task_id]), [None])


@group.case
async def task_id_with_another_payload_is_a_conflict(kit: Kit) -> None:
    """A known task_id with another payload is told apart, and the first stays as it was."""
    task = kit.new_task(payload=b'{"n":1}')
    await kit.add(task)
    answer = await kit.add(kit.new_task(task_id=task.task_id, payload=b'{"n":2}'))
    expect_true("the answer is a conflict", answer.conflict)
    expect("payload", (await kit.record(task.task_id)).payload, b'{"n":1}')


@group.case
async def task_id_with_another_type_is_a_conflict(kit: Kit) -> None:
    """A known task_id with another type is told apart."""
    task = kit.new_task()
    await kit.add(task)
    answer = await kit.add(kit.new_task(task_id=task.task_id, type="kit.other"))
    expect_true("the answer is a conflict", answer.conflict)
    expect("type", (await kit.record(task.task_id)).type, "kit.work")


@group.case
async def known_id_in_another_queue_is_a_conflict(kit: Kit) -> None:
    """A known task_id is a conflict in any other queue, whether or not type and payload are the same.

    The text does not say of which type the task in the other queue is.
    """
    task = kit.new_task(type="secret.type", payload=b'{"pin":1234}')
    await kit.add(task)
    place = partition_of(task.task_id)
    other = next(name for n in range(1_000) if kit.place(name := f"other-{n}", None) == place)
    for asked, payload in ((task.type, task.payload), ("other", task.payload), (task.type, b'{"pin":9999}')):
        answer = await kit.add(kit.new_task(task_id=task.task_id, queue=other, type=asked, payload=payload))
        expect_true("the answer is a conflict", answer.conflict)
        expect_true("the conflict tells no type", task.type not in (answer.conflict or ""))
        expect("created", answer.created, False)
    expect("queue", (await kit.record(task.task_id)).queue, "default")


@group.case
async def finished_task_still_answers_for_its_request_id(kit: Kit) -> None:
    """A request_id stands for its task after the task has succeeded too."""
    claim = await kit.claim(request_id="r-1")
    await kit.apply(ack(claim))
    expect("answer", await kit.add(kit.new_task(request_id="r-1")), Enqueued(claim.task_id, created=False))
    expect("state", await kit.state(claim.task_id), State.SUCCEEDED)


@group.case
async def repeat_does_not_touch_a_running_task(kit: Kit) -> None:
    """A repeat that arrives while the task runs changes nothing."""
    task = kit.new_task(delay_ms=0)
    await kit.add(task)
    claim = await kit.reserve_one()
    expect("answer", await kit.add(task), Enqueued(task.task_id, created=False))
    expect("state", await kit.state(task.task_id), State.CLAIMED)
    expect("ack", (await kit.apply(ack(claim))).applied, True)


@group.case
async def unknown_task_id_is_none(kit: Kit) -> None:
    """An id that was never enqueued is told as unknown, in its place."""
    [known] = await kit.enqueue()
    unknown = kit.ids.task_id()
    found = await kit.store.get([unknown, known, unknown])
    expect("ids", [task and task.task_id for task in found], [None, known, None])


def _enqueue_now(kit: Kit, task: NewTask) -> list[Enqueued] | None:
    """A try in the caller's thread, if the store is capable of it."""
    enqueue_now = kit.store.capabilities.enqueue_now
    return None if enqueue_now is None else enqueue_now([task])


@group.case
async def enqueue_now_records_or_says_none(kit: Kit) -> None:
    """A try in the caller's thread gives the answer of `enqueue`, or none; sent again, there is one task either way."""
    task = kit.new_task()
    expect_true("an answer or none", _enqueue_now(kit, task) in ([Enqueued(task.task_id)], None))
    await kit.add(task)
    expect("answer once it is there", (await kit.add(task)).created, False)
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 1)
    expect("the task handed out", (await kit.reserve_one()).task_id, task.task_id)


@group.case
async def enqueue_now_knows_what_was_recorded(kit: Kit) -> None:
    """Known ids and conflicts get the same answers from a try in the caller's thread as from `enqueue`."""
    first = kit.new_task(request_id="r-1", payload=b'{"n":1}')
    await kit.add(first)
    same, other = kit.new_task(request_id="r-1", payload=b'{"n":1}'), kit.new_task(request_id="r-1")
    for task in (first, same, other):
        expect_true("an answer or none", _enqueue_now(kit, task) in ([await kit.add(task)], None))
    expect("ready tasks", (await kit.counts()).states.get(State.READY), 1)
