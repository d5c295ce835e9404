"""Routes for operators: queues, workers, partitions, dead letters."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial

from msgspec import UNSET
from msgspec.structs import asdict, replace
from starlette.responses import Response, StreamingResponse

from holdfast.admin import actions, inspect
from holdfast.admin import workers as worker_actions
from holdfast.admin.actions import MakeChange, Pace
from holdfast.admin.inspect import QueueRow
from holdfast.admin.workers import partition_table
from holdfast.core import lifecycle
from holdfast.core.durations import duration_ms
from holdfast.core.names import check_queue
from holdfast.core.priority import AGED_STEP_MS, order_of
from holdfast.core.task import State
from holdfast.errors import BadOption, StoreUnavailable
from holdfast.security.redaction import redacted_text
from holdfast.server import permits
from holdfast.server.auth import Rule, Scope
from holdfast.server.checks import check_number, check_worker
from holdfast.server.operator_requests import (
    AnnounceBody,
    ConcurrencyBody,
    DeadFilter,
    DeadQuery,
    DiscardManyBody,
    OrderBody,
    ReplayBody,
    ScaleQuery,
)
from holdfast.server.polls import while_there
from holdfast.server.rendering import (
    FIRST_STEP_WITH_HISTORY,
    PAGE_BYTES,
    find_page,
    shown,
    shown_changes,
    shown_queue,
    shown_task,
)
from holdfast.server.requests import Nothing
from holdfast.server.responses import (
    BulkView,
    ConcurrencyView,
    ErrorGroupsView,
    ErrorGroupView,
    OrdersView,
    PartitionsView,
    PartitionView,
    QueuesView,
    QueueView,
    ScaleView,
    TaskPage,
    WorkersView,
    numbers,
)
from holdfast.server.routing import Call, Routes
from holdfast.stores import documents
from holdfast.stores.capabilities import in_part
from holdfast.stores.contract import LIST_OF_WORKERS, Page, Query, WorkerRecord
from holdfast.stores.remote.limits import LONGEST_TTL_MS

queue_routes = Routes("queues")

_READ = Rule((Scope.READ,))
_SEE = Rule((Scope.READ, Scope.ENQUEUE, Scope.WORK), "path")
_MANAGE = Rule((Scope.MANAGE,))


@queue_routes.add("GET", "/v1/queues", _READ, gives=QueuesView)
async def list_queues(call: Call) -> QueuesView:
    """Every queue that has tasks or a setting of its own, or is served by a live worker."""
    view = in_part(call.server.reads)
    rows = await inspect.queue_table(view.store)
    return QueuesView(queues=[shown_queue(row) for row in rows], left_out=numbers(view.left_out))


@queue_routes.add("GET", "/v1/queues/{queue}", _SEE, gives=QueueView)
async def show_queue(call: Call) -> QueueView:
    """One queue; an unknown name is that of an empty queue."""
    return await _shown_row(call)


@queue_routes.add("POST", "/v1/queues/{queue}/pause", _MANAGE, takes=Nothing, gives=QueueView)
async def pause_queue(call: Call, _: Nothing) -> QueueView:
    """Stops handing out tasks of this queue; what is running goes on."""
    view = in_part(call.server.store)
    await actions.pause(view.store, call.path("queue"))
    return await _shown_row(call, view.left_out)


@queue_routes.add("POST", "/v1/queues/{queue}/resume", _MANAGE, takes=Nothing, gives=QueueView)
async def resume_queue(call: Call, _: Nothing) -> QueueView:
    """Hands out tasks of this queue again."""
    view = in_part(call.server.store)
    await actions.resume(view.store, call.path("queue"))
    return await _shown_row(call, view.left_out)


@queue_routes.add("POST", "/v1/queues/{queue}/order", _MANAGE, takes=OrderBody, gives=QueueView)
async def order_queue(call: Call, body: OrderBody) -> QueueView:
    """Says what priority is worth in this queue, also for the tasks that wait there."""
    view = in_part(call.server.store)
    await actions.set_order(view.store, call.path("queue"), body.order, body.step)
    return await _shown_row(call, view.left_out)


@queue_routes.add("GET", "/v1/queues/{queue}/scale", _SEE, takes=ScaleQuery, gives=ScaleView)
async def scale_queue(call: Call, query: ScaleQuery) -> ScaleView:
    """What an autoscaler wants to know, such as KEDA's metrics-api trigger."""
    row, left_out = await _row(call)
    ready, running = row.states.get(State.READY, 0), row.states.get(State.CLAIMED, 0)
    return ScaleView(
        queue=row.queue,
        backlog=ready + running,
        ready=ready,
        running=running,
        oldest_ready_seconds=(row.oldest_ready_ms or 0) / 1000,
        workers=row.workers,
        desired=math.ceil((ready + running) / query.per_worker),
        left_out=numbers(left_out),
    )


async def _shown_row(call: Call, not_told: Collection[int] = ()) -> QueueView:
    row, left_out = await _row(call)
    return replace(shown_queue(row), left_out=numbers({*left_out, *not_told}))


async def _row(call: Call) -> tuple[QueueRow, Collection[int]]:
    """The queue, and what is left out of it: the workers, if their list is away. Its tasks are all there, or none."""
    queue = check_queue(call.path("queue"))
    view = in_part(call.server.reads)
    rows = await inspect.queue_table(view.store)
    away = view.left_out.keys() & await call.server.reach(queue) if view.left_out else ()
    for partition in away:
        raise StoreUnavailable(f"partition {partition}, which has tasks of queue {queue}: {view.left_out[partition]}")
    empty = QueueRow(
        queue=queue,
        paused=False,
        order=order_of(AGED_STEP_MS),
        step_ms=AGED_STEP_MS,
        states={},
        oldest_ready_ms=None,
        workers=0,
    )
    row = next((row for row in rows if row.queue == queue), empty)
    return row, view.left_out.keys() & {LIST_OF_WORKERS}


# -- workers -------------------------------------------------------------------------------------------------------


worker_routes = Routes("workers")


@worker_routes.add("GET", "/v1/workers", _READ, gives=WorkersView)
async def list_workers(call: Call) -> WorkersView:
    """Every worker heard of lately, the living first, without its task types: ask for one worker to see them."""
    view = in_part(call.server.reads)
    found = await inspect.worker_table(view.store)
    return WorkersView(workers=[replace(worker, types=()) for worker in found], left_out=numbers(view.left_out))


@worker_routes.add("GET", "/v1/workers/{worker_id}", _READ, gives=WorkerRecord)
async def show_worker(call: Call) -> WorkerRecord:
    """The worker with this id, or the only one whose id begins like that."""
    return await worker_actions.one_worker(call.server.store, call.path("worker_id"))


@worker_routes.add(
    "POST",
    "/v1/workers/{worker_id}/concurrency",
    Rule((Scope.MANAGE,)),
    takes=ConcurrencyBody,
    gives=ConcurrencyView,
)
async def set_concurrency(call: Call, body: ConcurrencyBody) -> ConcurrencyView:
    """Sets the concurrency of each process of a worker; takes effect at the next heartbeat."""
    (worker_id,) = await worker_actions.set_concurrency(call.server.store, [call.path("worker_id")], body.concurrency)
    return ConcurrencyView(worker_id=worker_id, concurrency=body.concurrency)


@worker_routes.add(
    "POST", "/v1/workers/{worker_id}/announce", Rule((Scope.WORK,), "body"), takes=AnnounceBody, gives=OrdersView
)
async def announce_worker(call: Call, body: AnnounceBody) -> OrdersView:
    """Records that a worker lives, so that it is listed and `why` knows of it; gives the orders that it has."""
    permits.demand_queues(call, body.queues)
    worker = WorkerRecord(
        worker_id=call.path("worker_id"),
        host=body.host,
        pid=body.pid,
        version=body.version,
        queues=tuple(body.queues),
        types=tuple(body.types),
        processes=1,
        concurrency=body.concurrency,
        running=body.running,
    )
    check_worker(worker)
    ttl_ms = check_number(duration_ms(body.ttl, "ttl"), "ttl in milliseconds", LONGEST_TTL_MS)
    orders = await call.server.announcements.announce(call, worker, ttl_ms)
    return OrdersView(concurrency=None if orders is None else orders.concurrency)


# -- partitions ----------------------------------------------------------------------------------------------------


partition_routes = Routes("partitions")


@partition_routes.add("GET", "/v1/partitions", Rule((Scope.READ,)), gives=PartitionsView)
async def list_partitions(call: Call) -> PartitionsView:
    """Every partition: its server, its leader, its depth."""
    store = call.server.store
    rows = [PartitionView(**asdict(row)) for row in await partition_table(store)]
    return PartitionsView(version=(await documents.partition_map(store)).version, partitions=rows)


# -- dead letters --------------------------------------------------------------------------------------------------


dead_letter_routes = Routes("dead letters")

#: A request that takes longer is better made several times.
_LONGEST_SECONDS = 60


@dead_letter_routes.add("GET", "/v1/dead-letters", _READ, takes=DeadQuery, gives=TaskPage)
async def find_dead_letters(call: Call, query: DeadQuery) -> TaskPage:
    """Dead letters that match, newest first, with their history, and a cursor to go on."""
    store, left_out = in_part(call.server.store)
    wanted = replace(_query(query), limit=query.limit, cursor=query.cursor)

    async def find(part: Query) -> Page:
        return await inspect.with_history(store, await store.find(part))

    await call.answer_share.wait(PAGE_BYTES)
    page = await while_there(call, find_page(find, wanted, FIRST_STEP_WITH_HISTORY))
    tasks = await shown(page.tasks, lambda task: shown_task(task, call.caller, history=True))
    return TaskPage(tasks=tasks, cursor=page.cursor, left_out=numbers(left_out))


@dead_letter_routes.add("GET", "/v1/dead-letters/by-error", _READ, takes=DeadFilter, gives=ErrorGroupsView)
async def group_dead_letters(call: Call, query: DeadFilter) -> ErrorGroupsView:
    """The newest dead letters that match, grouped by task type and class of error."""
    await call.answer_share.wait(PAGE_BYTES)
    view = in_part(call.server.store)
    found = await while_there(call, inspect.dead_letters_by_error(view.store, _query(query)))
    # They are of many queues: only callers that may manage all of them see the errors without redaction.
    shown = str if call.caller.may(Scope.MANAGE) else redacted_text
    groups = [ErrorGroupView(**{**asdict(group), "message": shown(group.message)}) for group in found.groups]
    return ErrorGroupsView(
        groups=groups, looked_at=found.looked_at, complete=found.complete, left_out=numbers(view.left_out)
    )


@dead_letter_routes.add("POST", "/v1/dead-letters/replay", _MANAGE, takes=ReplayBody, gives=BulkView)
async def replay_dead_letters(call: Call, body: ReplayBody) -> BulkView:
    """Puts dead letters back with fresh attempts: these, or those that match."""
    return await _change(call, body, lifecycle.replay)


@dead_letter_routes.add("POST", "/v1/dead-letters/discard", _MANAGE, takes=DiscardManyBody, gives=BulkView)
async def discard_dead_letters(call: Call, body: DiscardManyBody) -> BulkView:
    """Deletes dead letters: these, or those that match; a record with payload and reason is kept."""
    return await _change(call, body, partial(lifecycle.discard, reason=actions.check_reason(body.reason)))


async def _change(call: Call, body: ReplayBody, make_change: MakeChange) -> BulkView:
    if (body.task_ids is UNSET) == (body.filter is UNSET):
        raise BadOption('give either "task_ids" or "filter"; an empty filter {} means all')
    if body.task_ids is not UNSET:
        changes = [make_change(task_id) for task_id in body.task_ids]
        verdicts = await call.server.store.apply(changes) if changes else []
        tasks = shown_changes(body.task_ids, verdicts)
        return BulkView(matched=len(tasks), changed=sum(task.applied for task in tasks), tasks=tasks)
    if body.rate is not None and body.limit > body.rate * _LONGEST_SECONDS:
        most = int(body.rate * _LONGEST_SECONDS)
        raise BadOption(f"limit: {body.limit} at this rate takes over {_LONGEST_SECONDS} s; ask for {most} at a time")
    view = in_part(call.server.store)
    bulk = actions.in_bulk(
        view.store, _query(body.filter or DeadFilter()), make_change, limit=body.limit, pace=Pace(body.rate)
    )
    result = await while_there(call, bulk)
    return BulkView(matched=result.matched, changed=result.changed, left_out=numbers(view.left_out))


def _query(wanted: DeadFilter) -> Query:
    return actions.dead_letters(wanted.queue, wanted.type, wanted.error_type)


# -- events --------------------------------------------------------------------------------------------------------


event_routes = Routes("events")


@event_routes.add("GET", "/v1/events", Rule((Scope.READ,)))
async def listen(call: Call) -> Response:
    """Queues and workers as server-sent events: all of them first, then those that change."""
    if call.request.method == "HEAD":  # Starlette routes HEAD to every GET route
        return Response(media_type="text/event-stream")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        await call.server.feed.listen(call.caller), headers=headers, media_type="text/event-stream"
    )
