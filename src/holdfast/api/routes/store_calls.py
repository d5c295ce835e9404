"""The store contract, method by method, for stores that are a gateway away."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response

from holdfast.api import permits
from holdfast.api.checks import (
    check_changes,
    check_holds,
    check_number,
    check_query,
    check_reserve,
    check_size,
    check_task,
    is_task_id,
)
from holdfast.api.guard import Denied, Rule, Scope
from holdfast.api.pages import find_page, get_tasks, list_response, shown
from holdfast.api.presence import while_there
from holdfast.api.routing import Call, Routes
from holdfast.api.showing import discard_without_secrets, without_secrets
from holdfast.api.turns import Turns
from holdfast.api.waiters import Waiters
from holdfast.core.durations import LONGEST_MS
from holdfast.core.lifecycle import UNKNOWN, Verdict
from holdfast.core.names import check_key, check_queue
from holdfast.core.task import UNKNOWN_CLAIM, Enqueued, Extension, Lapsed, Task
from holdfast.errors import BadOption
from holdfast.stores.contract import (
    MAX_BATCH,
    UPKEEP_BELL,
    Discard,
    Kept,
    Page,
    Promoted,
    QueueCounts,
    Reserved,
    Store,
    WorkerRecord,
)
from holdfast.stores.passing import PassingStore
from holdfast.wire import calls, problems
from holdfast.wire.calls import MAP_VERSION, PARTITION, StoreCall
from holdfast.wire.limits import LONGEST_LEASE_MS, MAX_QUEUES

Q = TypeVar("Q")
A = TypeVar("A")

Answer = Callable[[Call, Q], Awaitable[A | Response]]

routes = Routes("store")

_ENQUEUE = Rule((Scope.ENQUEUE,), "body")
WORK = Rule((Scope.WORK,), "body")
_HELD = Rule((Scope.WORK,), "task")
_BY_CLAIM = Rule((Scope.WORK, Scope.ENQUEUE, Scope.MANAGE, Scope.ADMIN), "task")
_BY_TASK = Rule((Scope.READ, Scope.WORK, Scope.ENQUEUE), "task")
#: For those who may see all queues, and for those of one queue, as far as it goes.
_BY_QUEUE = Rule((Scope.READ, Scope.WORK, Scope.ENQUEUE), "body")
READ = Rule((Scope.READ,))
MANAGE = Rule((Scope.MANAGE,))
ADMIN = Rule((Scope.ADMIN,))


def answers(method: StoreCall[Q, A], rule: Rule, routes: Routes = routes) -> Callable[[Answer[Q, A]], Answer[Q, A]]:
    """Declares the function below it as the answer to a method."""

    def declare(function: Answer[Q, A]) -> Answer[Q, A]:
        async def handler(call: Call, request: Q) -> A | Response:
            call.store = await _store(call)
            return await function(call, request)

        handler.__name__ = f"store_{method.method}"
        handler.__doc__ = function.__doc__
        routes.add("POST", method.path, rule, takes=method.request, gives=method.answer, batch=True)(handler)
        return function

    return declare


async def _store(call: Call) -> Store:
    """The store that is meant: as a whole or one of its partitions, by the gateway's map or by the caller's own."""
    given = call.request.query_params
    store = call.gateway.store
    if PARTITION in given:
        permits.demand_scope(call, Scope.ADMIN, "one partition")
        partitions = await call.gateway.partitions()
        number = _number(given[PARTITION], PARTITION)
        if number >= len(partitions):
            raise Denied(problems.NOT_FOUND.problem(f"there are {len(partitions)} partitions"))
        store = partitions[number]
    return _by_map(store, _number(given[MAP_VERSION], MAP_VERSION)) if MAP_VERSION in given else store


def _by_map(store: Store, version: int) -> Store:
    """The same store, routed to by this version: a copy shares all but that, so calls of others go on by theirs."""
    view = copy.copy(store)
    if isinstance(view, PassingStore):
        view.inner = _by_map(view.inner, version)
    else:
        view.map_version = version
    return view


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise BadOption(f"{what}: {text!r:.80} is not a number")
    return int(text)


# -- the path of a task ------------------------------------------------------------------------------------------


@answers(calls.ENQUEUE, _ENQUEUE)
async def _enqueue(call: Call, request: calls.Enqueue) -> list[Enqueued]:
    """Records tasks."""
    tasks = request.tasks
    check_size(tasks, "tasks")
    turns = Turns()
    for task in tasks:
        check_task(task, call.gateway.settings.max_payload_bytes)
        await turns.after(len(task.payload))
    permits.demand_queues(call, (task.queue for task in tasks))
    return await call.store.enqueue(tasks)


@answers(calls.RESERVE, WORK)
async def _reserve(call: Call, request: calls.Reserve) -> Reserved:
    """Settles what was done, and claims tasks."""
    check_reserve(request.request)
    check_changes(request.settle, call.gateway.settings.max_payload_bytes)
    permits.demand_queues(call, (share.queue for share in request.request.shares))
    own = await permits.own_changes(call, request.settle)
    reserved = await call.store.reserve(request.request, own.items)
    return Reserved(permits.handed_out(call, reserved.tasks), own.with_others(reserved.verdicts, UNKNOWN))


@answers(calls.EXTEND, _HELD)
async def _extend(call: Call, request: calls.Extend) -> list[Extension]:
    """Gives claims more time."""
    check_holds(request.holds, call.gateway.settings.max_payload_bytes)
    # A negative one only asks whether the claim is current.
    check_number(request.lease_ms, "lease_ms", LONGEST_LEASE_MS, -LONGEST_MS)
    own = await permits.own_holds(call, request.holds)
    return own.with_others(await call.store.extend(own.items, request.lease_ms), UNKNOWN_CLAIM)


@answers(calls.APPLY, _BY_CLAIM)
async def _apply(call: Call, request: calls.Apply) -> list[Verdict]:
    """Executes changes."""
    check_changes(request.changes, call.gateway.settings.max_payload_bytes)
    own = await permits.own_changes(call, request.changes)
    return own.with_others(await call.store.apply(own.items), UNKNOWN)


@answers(calls.KEEP, Rule((Scope.WORK,)))
async def _keep(call: Call, request: calls.Keep) -> Kept:
    """Keeps a value under a key, which is one for all queues."""
    permits.demand_everywhere(call, Scope.WORK, "once()")
    check_key(request.key)
    check_number(request.ttl_ms, "ttl_ms")
    check_size(request.value, "bytes of the value", call.gateway.settings.max_payload_bytes)
    if request.hold is None:
        permits.demand_scope(call, Scope.ADMIN, "to keep a value without a claim")
    else:
        check_holds([request.hold], call.gateway.settings.max_payload_bytes)
    return await call.store.keep(request.key, request.value, request.ttl_ms, request.hold)


@answers(calls.PROMOTE, ADMIN)
async def _promote(call: Call, request: calls.Epoch) -> Promoted:
    """Moves due tasks to `ready`."""
    return await call.store.promote(request.epoch, check_number(request.limit, "limit", MAX_BATCH))


@answers(calls.EXPIRED, ADMIN)
async def _expired(call: Call, request: calls.Limit) -> list[Lapsed]:
    """Claims whose lease has run out, with their tokens."""
    return await call.store.expired(check_number(request.limit, "limit", MAX_BATCH))


@answers(calls.OVERDUE, READ)
async def _overdue(call: Call, request: calls.Limit) -> list[str]:
    """Tasks whose deadline to start has passed."""
    return await call.store.overdue(check_number(request.limit, "limit", MAX_BATCH))


@answers(calls.WAIT, WORK)
async def _wait(call: Call, request: calls.Wait) -> bool:
    """Waits for one of these queues; false after the time, which is cut to what a request may wait."""
    check_size(request.bells, "bells", MAX_QUEUES)
    timeout_ms = min(check_number(request.timeout_ms, "timeout_ms"), call.gateway.settings.longest_wait_ms)
    for bell in request.bells:
        if bell == UPKEEP_BELL:
            permits.demand_scope(call, Scope.ADMIN, "the bell of the upkeep")
        else:
            call.demand(check_queue(bell))
    if PARTITION in call.request.query_params:
        return await while_there(call, call.store.wait(request.bells, timeout_ms))
    return await while_there(call, _rung(call.gateway.waiters, request.bells, timeout_ms / 1000))


async def _rung(waiters: Waiters, bells: list[str], timeout_seconds: float) -> bool:
    async with waiters.place(bells) as place:
        place.found = await place.rung(timeout_seconds)
        return place.found


# -- looking -----------------------------------------------------------------------------------------------------


@answers(calls.GET, _BY_TASK)
async def _get(call: Call, request: calls.TaskIds) -> list[Task | None] | Response:
    """Tasks with all that is known of them."""
    check_size(request.task_ids, "task_ids")
    found = permits.visible(call, await get_tasks(call.store, [*filter(is_task_id, request.task_ids)]))
    there = (task for task in found if task is not None)
    tasks = {task.task_id: task for task in await shown(there, lambda task: without_secrets(task, call.caller))}
    return list_response([tasks.get(task_id) for task_id in request.task_ids])


@answers(calls.KEPT, Rule((Scope.WORK,)))
async def _kept(call: Call, request: calls.Key) -> bytes | None:
    """What is kept under a key, which is one for all queues."""
    permits.demand_everywhere(call, Scope.WORK, "once()")
    return await call.store.kept(check_key(request.key))


@answers(calls.FIND, _BY_QUEUE)
async def _find(call: Call, request: calls.Find) -> Page:
    """Tasks that match, in a queue of the caller."""
    check_query(request.query)
    if request.query.queue is not None:
        call.demand(request.query.queue)
    else:
        permits.demand_scope(call, Scope.READ, "to look into all queues")
    page = await find_page(call.store.find, request.query)
    return Page(await shown(page.tasks, lambda task: without_secrets(task, call.caller)), page.cursor)


@answers(calls.COUNTS, _BY_QUEUE)
async def _counts(call: Call, _: calls.NoArguments) -> list[QueueCounts]:
    """Depths of the caller's queues."""
    return await permits.OwnPart(call).counts()


@answers(calls.WORKERS, _BY_QUEUE)
async def _workers(call: Call, _: calls.NoArguments) -> list[WorkerRecord]:
    """Workers of the caller's queues that were heard of."""
    return await permits.OwnPart(call).workers()


@answers(calls.DISCARDS, READ)
async def _discards(call: Call, request: calls.Limit) -> list[Discard]:
    """Records of discarded tasks."""
    found = await call.store.discards(check_number(request.limit, "limit", MAX_BATCH))
    return [discard_without_secrets(discard, call.caller) for discard in found]
