"""The store contract over HTTP: the path of a task, and reading."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Any, Final, TypeVar

from starlette.responses import Response

from holdfast.core.lifecycle import UNKNOWN, Verdict
from holdfast.core.names import check_queue
from holdfast.core.task import UNKNOWN_CLAIM, Enqueued, Extension, Task
from holdfast.errors import BadOption
from holdfast.server import permits
from holdfast.server.auth import Denied, Rule, Scope
from holdfast.server.budgets import CpuSlices
from holdfast.server.checks import (
    check_changes,
    check_holds,
    check_item,
    check_not_of_schedule,
    check_number,
    check_query,
    check_reserve,
    check_size,
    check_task,
    is_task_id,
)
from holdfast.server.polls import while_there
from holdfast.server.rendering import PAGE_BYTES, TASK_BYTES, find_page, get_tasks, shown, without_secrets
from holdfast.server.routing import Call, Routes
from holdfast.stores.capabilities import in_part
from holdfast.stores.contract import MAINTENANCE_WAKEUP, Page, QueueCounts, Reserved, Store, WorkerRecord
from holdfast.stores.remote import calls, problems
from holdfast.stores.remote.calls import IN_PART, PARTITION, StoreCall
from holdfast.stores.remote.limits import LONGEST_LEASE_MS, MAX_QUEUES

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
ADMIN = Rule((Scope.ADMIN,))
#: Digits in the number of a partition.
_LONGEST_NUMBER: Final = 15
_BATCH: Final[dict[str, Any]] = {"batch": True, "check_item": check_item}


def answers(method: StoreCall[Q, A], rule: Rule, routes: Routes = routes) -> Callable[[Answer[Q, A]], Answer[Q, A]]:
    """Declares the function below it as the answer to a method."""

    def declare(function: Answer[Q, A]) -> Answer[Q, A]:
        async def handler(call: Call, request: Q) -> A | Response:
            call.store = await _store(call)
            return await function(call, request)

        handler.__name__ = f"store_{method.method}"
        handler.__doc__ = function.__doc__
        declare_route = routes.add("POST", method.path, rule, takes=method.request, gives=method.answer, **_BATCH)
        declare_route(handler)
        return function

    return declare


async def _store(call: Call) -> Store:
    """The store that is meant: as a whole, without the partitions that are away, or one of its partitions."""
    text = call.request.query_params.get(PARTITION)
    if text is None and call.request.headers.get(IN_PART) == "1":
        view = in_part(call.server.reads)
        call.left_out = view.left_out
        return view.store
    if text is None:
        return call.server.store
    permits.demand_scope(call, Scope.ADMIN, "one partition")
    partitions = await call.server.partitions()
    if not text.isascii() or not text.isdecimal() or len(text) > _LONGEST_NUMBER:
        raise BadOption(f"{PARTITION}: {text!r:.80} is not a number")
    if int(text) >= len(partitions):
        raise Denied(problems.NOT_FOUND.problem(f"there are {len(partitions)} partitions"))
    return partitions[int(text)]


# -- the path of a task ------------------------------------------------------------------------------------------


@answers(calls.ENQUEUE, _ENQUEUE)
async def _enqueue(call: Call, request: calls.Enqueue) -> list[Enqueued]:
    """Records tasks."""
    tasks = request.tasks
    check_size(tasks, "tasks")
    slices = CpuSlices()
    for task in tasks:
        check_task(check_not_of_schedule(task), call.server.settings.max_payload_bytes)
        await slices.after(len(task.payload))
    permits.demand_queues(call, (task.queue for task in tasks))
    return permits.conflicts_of_own(call, await call.store.enqueue(tasks, map_version=request.map_version))


@answers(calls.RESERVE, WORK)
async def _reserve(call: Call, request: calls.Reserve) -> Reserved:
    """Settles what was done, and claims tasks."""
    check_reserve(request.request)
    check_changes(request.settle, call.server.settings.max_payload_bytes)
    permits.demand_queues(call, (share.queue for share in request.request.shares))
    own = await permits.own_changes(call, request.settle)
    reserved = await call.server.polls.reserve_now(call.store, request.request, own.items, call.answer_share)
    tasks = permits.handed_out(call, reserved.tasks)
    return Reserved(tasks, own.with_others(reserved.verdicts, UNKNOWN), reserved.cut)


@answers(calls.EXTEND, _HELD)
async def _extend(call: Call, request: calls.Extend) -> list[Extension]:
    """Gives claims more time."""
    check_holds(request.holds, call.server.settings.max_payload_bytes)
    check_number(request.lease_ms, "lease_ms", LONGEST_LEASE_MS)
    own = await permits.own_holds(call, request.holds)
    extended = await call.store.extend(own.items, request.lease_ms, check_only=request.check_only)
    return own.with_others(extended, UNKNOWN_CLAIM)


@answers(calls.APPLY, _BY_CLAIM)
async def _apply(call: Call, request: calls.Apply) -> list[Verdict]:
    """Executes changes."""
    check_changes(request.changes, call.server.settings.max_payload_bytes)
    own = await permits.own_changes(call, request.changes)
    return own.with_others(await call.store.apply(own.items), UNKNOWN)


@answers(calls.WAIT, WORK)
async def _wait(call: Call, request: calls.Wait) -> bool:
    """Waits for one of these queues; false after the time, which is cut to what a request may wait."""
    check_size(request.wakeups, "wakeups", MAX_QUEUES)
    timeout_ms = min(check_number(request.timeout_ms, "timeout_ms"), call.server.settings.longest_wait_ms)
    for wakeup in request.wakeups:
        if wakeup == MAINTENANCE_WAKEUP:
            permits.demand_scope(call, Scope.ADMIN, "the wake-up of the maintenance")
        else:
            call.demand(check_queue(wakeup))
    if PARTITION in call.request.query_params:
        return await while_there(call, call.store.wait(request.wakeups, timeout_ms))
    return await while_there(call, _notified(call, request.wakeups, timeout_ms / 1000))


async def _notified(call: Call, wakeups: list[str], timeout_seconds: float) -> bool:
    async with call.server.waiters.place(wakeups, token=call.caller.name) as place:
        place.found = await place.woken(timeout_seconds)
        return place.found


# -- reading -----------------------------------------------------------------------------------------------------


@answers(calls.GET, _BY_TASK)
async def _get(call: Call, request: calls.TaskIds) -> list[Task | None]:
    """Tasks with all that is known of them: the first ones of the list, as many as fit into 4 MiB."""
    task_ids = request.task_ids
    check_size(task_ids, "task_ids")
    if len(set(task_ids)) < len(task_ids):
        raise BadOption("task_ids: one is named twice; ask for each task once")
    await call.answer_share.wait(min(TASK_BYTES * len(task_ids), PAGE_BYTES))
    asked = [*filter(is_task_id, task_ids)]
    found = permits.visible(call, await get_tasks(call.store, asked))
    missing = frozenset(asked[len(found) :])
    there = (task for task in found if task is not None)
    tasks = {task.task_id: task for task in await shown(there, lambda task: without_secrets(task, call.caller))}
    return [tasks.get(task_id) for task_id in takewhile(lambda task_id: task_id not in missing, task_ids)]


@answers(calls.FIND, _BY_QUEUE)
async def _find(call: Call, request: calls.Find) -> Page:
    """Tasks that match, in a queue of the caller."""
    check_query(request.query)
    if request.query.queue is not None:
        call.demand(request.query.queue)
    else:
        permits.demand_scope(call, Scope.READ, "to look into all queues")
    await call.answer_share.wait(PAGE_BYTES)
    page = await while_there(call, find_page(call.store.find, request.query))
    tasks = await shown(page.tasks, lambda task: without_secrets(task, call.caller))
    return Page(tasks, page.cursor, page.after)


@answers(calls.COUNTS, _BY_QUEUE)
async def _counts(call: Call, _: calls.NoArguments) -> list[QueueCounts]:
    """Depths of the caller's queues."""
    return await permits.VisibleStore(call).counts()


@answers(calls.WORKERS, _BY_QUEUE)
async def _workers(call: Call, _: calls.NoArguments) -> list[WorkerRecord]:
    """Workers of the caller's queues that were heard of."""
    return await permits.VisibleStore(call).workers()
