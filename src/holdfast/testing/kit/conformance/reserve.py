"""Reserve: one holder at a time, the right tasks, the same answer for the same claim_id."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import fencing_token
from holdfast.core.task import State
from holdfast.stores import documents
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import LEASE_MS, Kit, ack, retry

group = Group("reserve")


@group.case
async def one_holder_at_a_time(kit: Kit) -> None:
    """A claimed task is not handed out again."""
    await kit.enqueue()
    expect("first call", len(await kit.reserve()), 1)
    expect("second call", await kit.reserve(), [])


@group.case
async def claim_is_recorded(kit: Kit) -> None:
    """A claimed task shows its worker, its lease, and one attempt and delivery used."""
    claim = await kit.claim()
    record = await kit.record(claim.task_id)
    now_ms = kit.clock.now_ms()
    expect("state", record.state, State.CLAIMED)
    expect("worker", record.worker_id, "worker-1")
    expect("claimed at, lease", (record.claimed_at_ms, record.lease_expires_at_ms), (now_ms, now_ms + LEASE_MS))
    expect("attempt and deliveries", (record.attempt, record.deliveries), (1, 1))
    expect("attempt told to the worker", claim.attempt, 1)


@group.case
async def worker_is_told_when(kit: Kit) -> None:
    """A worker is told when its task was recorded and when claimed, by the store's clock, on a repeat the same."""
    created_ms = kit.clock.now_ms()
    await kit.enqueue()
    kit.clock.advance(700)
    request = kit.request()
    [first] = (await kit.store.reserve(request)).tasks
    expect("times", (first.created_at_ms, first.claimed_at_ms), (created_ms, created_ms + 700))
    kit.clock.advance(100)
    expect("on a repeat", (await kit.store.reserve(request)).tasks, [first])
    await kit.apply(lifecycle.release(first.task_id, first.token))
    kit.clock.advance(100)
    again = await kit.reserve_one()
    expect("claimed again", (again.created_at_ms, again.claimed_at_ms), (created_ms, created_ms + 900))


@group.case
async def worker_is_told_since_when_it_was_due(kit: Kit) -> None:
    """A worker is told since when its task was ready or due: a delay or a pause before a retry is no wait."""
    created_ms = kit.clock.now_ms()
    await kit.enqueue(priority=7)
    kit.clock.advance(50)
    expect("at once", (await kit.reserve_one()).ready_at_ms, created_ms)
    await kit.enqueue(delay_ms=1_000, priority=-3)
    kit.clock.advance(1_200)
    await kit.promote()
    first = await kit.reserve_one()
    expect("delayed", first.ready_at_ms, created_ms + 1_050)
    await kit.apply(retry(first, 500))
    kit.clock.advance(900)
    await kit.promote()
    expect("a retry", (await kit.reserve_one()).ready_at_ms, created_ms + 1_750)


@group.case
async def never_more_than_asked(kit: Kit) -> None:
    """A reserve call gets at most `max_tasks`."""
    await kit.enqueue(5)
    expect("tasks of the first call", len(await kit.reserve(3)), 3)
    expect("claimed", (await kit.counts()).states.get(State.CLAIMED), 3)
    expect("tasks of the second call", len(await kit.reserve(3)), 2)


@group.case
async def answer_is_limited_in_bytes(kit: Kit) -> None:
    """An answer ends before the task whose payload does not fit; the rest stays ready, in its order, and is told of."""
    payload = b'{"x":"%s"}' % (b"." * 992)
    ids = await kit.enqueue(5, payload=payload)
    got = []
    for cut in (True, True, False):
        answer = await kit.store.reserve(kit.request(5, max_bytes=2_500))
        expect("cut", answer.cut, cut)
        got.append([task.task_id for task in answer.tasks])
    expect("tasks of each call", got, [ids[:2], ids[2:4], ids[4:]])


@group.case
async def first_task_comes_however_large(kit: Kit) -> None:
    """A task that is larger than the whole answer may be is handed out alone."""
    [large] = await kit.enqueue(payload=b'{"x":"%s"}' % (b"." * 1_000))
    [small] = await kit.enqueue()
    for task_id, cut in ((large, True), (small, False)):
        answer = await kit.store.reserve(kit.request(5, max_bytes=100))
        expect("tasks", [task.task_id for task in answer.tasks], [task_id])
        expect("cut", answer.cut, cut)


@group.case
async def limit_in_bytes_holds_over_all_queues(kit: Kit) -> None:
    """`max_bytes` holds for the whole answer, also when it is put together from several queues."""
    payload = b'{"x":"%s"}' % (b"." * 992)
    for queue in ("a", "b"):
        await kit.enqueue(3, queue=queue, payload=payload)
    answer = await kit.store.reserve(kit.request(6, queues=("a", "b"), max_bytes=2_500))
    expect_true("one or two tasks", 1 <= len(answer.tasks) <= 2)
    expect("cut", answer.cut, True)
    ready = [(await kit.counts(queue)).states.get(State.READY, 0) for queue in ("a", "b")]
    expect("left", sum(ready), 6 - len(answer.tasks))


@group.case
async def repeat_of_a_cut_answer_gets_the_same_tasks(kit: Kit) -> None:
    """The same request again, after a lost reply, gets the same tasks, although more would have been ready."""
    await kit.enqueue(5, payload=b'{"x":"%s"}' % (b"." * 992))
    request = kit.request(5, max_bytes=2_500)
    first = (await kit.store.reserve(request)).tasks
    expect("tasks", (await kit.store.reserve(request)).tasks, first)
    expect("claimed", (await kit.counts()).states.get(State.CLAIMED), len(first))


@group.case
async def shares_do_not_raise_the_total(kit: Kit) -> None:
    """`max_tasks` holds over all queues together."""
    await kit.enqueue(5, queue="a")
    await kit.enqueue(5, queue="b")
    tasks = await kit.reserve(4, shares=[QueueShare("a", 4), QueueShare("b", 4)])
    expect("tasks", len(tasks), 4)


@group.case
async def nothing_ready_gives_nothing(kit: Kit) -> None:
    """Empty and unknown queues give no tasks and no error."""
    expect("tasks", await kit.reserve(5, queues=("default", "nowhere")), [])


@group.case
async def zero_tasks_asked_gives_none(kit: Kit) -> None:
    """A call that asks for no tasks only settles."""
    claim = await kit.claim()
    await kit.enqueue()
    answer = await kit.store.reserve(kit.request(0), [ack(claim)])
    expect("tasks", answer.tasks, [])
    expect("verdict", answer.verdicts[0].applied, True)


@group.case
async def only_the_queues_asked_for(kit: Kit) -> None:
    """Tasks of other queues stay where they are."""
    [other] = await kit.enqueue(queue="other")
    [mine] = await kit.enqueue(queue="mine")
    expect("tasks", [task.task_id for task in await kit.reserve(5, queues=("mine",))], [mine])
    expect("state of the other", await kit.state(other), State.READY)


@group.case
async def only_the_types_asked_for(kit: Kit) -> None:
    """A task of an unknown type waits, and does not block known ones behind it."""
    unknown = await kit.enqueue(150, type="kit.unknown")
    known = await kit.enqueue(2, type="kit.known")
    tasks = await kit.reserve(5, types=frozenset({"kit.known"}))
    expect("tasks", [task.task_id for task in tasks], known)
    expect("state of the unknown", await kit.state(unknown[0]), State.READY)


@group.case
async def several_types_come_in_one_order(kit: Kit) -> None:
    """With several known types, tasks still come first come, first served."""
    first = await kit.enqueue(type="kit.a")
    await kit.enqueue(type="kit.b")
    second = await kit.enqueue(type="kit.c")
    tasks = await kit.reserve(5, types=frozenset({"kit.c", "kit.a"}))
    expect("tasks", [task.task_id for task in tasks], first + second)


@group.case
async def no_types_gives_nothing(kit: Kit) -> None:
    """A worker that knows no type gets no task."""
    await kit.enqueue()
    expect("tasks", await kit.reserve(5, types=frozenset()), [])


@group.case
async def strict_order_of_queues(kit: Kit) -> None:
    """Each queue with all slots as its share: the first is emptied before the second."""
    low = await kit.enqueue(3, queue="low")
    high = await kit.enqueue(2, queue="high")
    tasks = await kit.reserve(4, queues=("high", "low"))
    expect("tasks", [task.task_id for task in tasks], high + low[:2])


@group.case
async def shares_come_first(kit: Kit) -> None:
    """Each queue gets its share when all have tasks."""
    for queue in ("a", "b", "c"):
        await kit.enqueue(10, queue=queue)
    tasks = await kit.reserve(8, shares=[QueueShare("a", 5), QueueShare("b", 2), QueueShare("c", 1)])
    taken = [task.queue for task in tasks]
    expect("tasks of each queue", {queue: taken.count(queue) for queue in "abc"}, {"a": 5, "b": 2, "c": 1})


@group.case
async def left_over_shares_are_filled(kit: Kit) -> None:
    """What one queue leaves over, the others get, in order."""
    await kit.enqueue(1, queue="a")
    await kit.enqueue(10, queue="b")
    await kit.enqueue(10, queue="c")
    tasks = await kit.reserve(8, shares=[QueueShare("a", 5), QueueShare("b", 2), QueueShare("c", 1)])
    taken = [task.queue for task in tasks]
    expect("tasks of each queue", {queue: taken.count(queue) for queue in "abc"}, {"a": 1, "b": 6, "c": 1})


@group.case
async def share_of_nothing_is_filled_last(kit: Kit) -> None:
    """A queue with a share of 0 gets only what the others leave over."""
    await kit.enqueue(2, queue="a")
    await kit.enqueue(2, queue="b")
    tasks = await kit.reserve(3, shares=[QueueShare("a", 0), QueueShare("b", 3)])
    expect("queues", sorted(task.queue for task in tasks), ["a", "b", "b"])


@group.case
async def repeated_claim_id_gets_the_same_tasks(kit: Kit) -> None:
    """The same request again, after a lost reply, gets exactly the same claims."""
    await kit.enqueue(5)
    request = kit.request(3)
    first = await kit.store.reserve(request)
    kit.clock.advance(10)
    second = await kit.store.reserve(request)
    expect("tasks", second.tasks, first.tasks)
    expect("claimed", (await kit.counts()).states.get(State.CLAIMED), 3)


@group.case
async def repeated_claim_id_leaves_leases_alone(kit: Kit) -> None:
    """The repeat neither extends the leases nor counts an attempt."""
    [task_id] = await kit.enqueue()
    request = kit.request()
    await kit.store.reserve(request)
    before = await kit.record(task_id)
    kit.clock.advance(1_000)
    await kit.store.reserve(request)
    expect("record", await kit.record(task_id), before)


@group.case
async def repeated_claim_id_gets_what_it_still_holds(kit: Kit) -> None:
    """After some were settled, the repeat gets the others only."""
    await kit.enqueue(5)
    request = kit.request(3)
    first = (await kit.store.reserve(request)).tasks
    await kit.apply(ack(first[1]))
    expect("tasks", (await kit.store.reserve(request)).tasks, [first[0], first[2]])


@group.case
async def claim_id_without_types_gets_what_it_holds_and_nothing_new(kit: Kit) -> None:
    """A supervisor asks so for the tasks of a child that died before it could tell of them."""
    await kit.enqueue(5)
    request = kit.request(3)
    held = (await kit.store.reserve(request)).tasks
    expect("held", (await kit.store.reserve(replace(request, types=frozenset()))).tasks, held)
    expect("new", (await kit.store.reserve(replace(kit.request(3), types=frozenset()))).tasks, [])


@group.case
async def every_claim_has_its_own_token(kit: Kit) -> None:
    """Tokens differ between claims, and their fencing number grows with every claim of a task."""
    first = await kit.claim()
    await kit.apply(lifecycle.release(first.task_id, first.token))
    second = await kit.reserve_one()
    expect("task", second.task_id, first.task_id)
    expect_true("the token is a new one", second.token != first.token)
    expect_true("the fencing token has grown", fencing_token(second.token) > fencing_token(first.token))


@group.case
async def paused_queue_hands_out_nothing(kit: Kit) -> None:
    """A paused queue keeps its tasks; the others go on; resuming brings them back."""
    paused = await kit.enqueue(2, queue="a")
    running = await kit.enqueue(2, queue="b")
    await documents.pause(kit.store, "a", paused=True)
    tasks = await kit.reserve(5, queues=("a", "b"))
    expect("tasks while paused", [task.task_id for task in tasks], running)
    await documents.pause(kit.store, "a", paused=False)
    expect("tasks after", [task.task_id for task in await kit.reserve(5, queues=("a", "b"))], paused)


@group.case
async def pause_takes_tasks_and_settlements(kit: Kit) -> None:
    """While a queue is paused, tasks can be enqueued, and running ones are settled and extended."""
    claim = await kit.claim()
    await documents.pause(kit.store, "default", paused=True)
    await documents.pause(kit.store, "default", paused=True)
    await kit.enqueue()
    expect("settled", (await kit.apply(ack(claim))).applied, True)
    expect("tasks", await kit.reserve(), [])
