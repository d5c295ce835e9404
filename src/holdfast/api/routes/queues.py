"""Queues: looking, pausing, ordering, and what an autoscaler asks."""

from __future__ import annotations

import math

from holdfast.admin import actions, inspect
from holdfast.admin.inspect import QueueRow
from holdfast.api.guard import Rule, Scope
from holdfast.api.routing import Call, Routes
from holdfast.api.showing import shown_queue
from holdfast.core.names import check_queue
from holdfast.core.priority import AGED_STEP_MS, order_of
from holdfast.core.task import State
from holdfast.wire.operator_shapes import OrderBody, ScaleQuery
from holdfast.wire.operator_views import QueuesView, QueueView, ScaleView
from holdfast.wire.shapes import Nothing

routes = Routes("queues")

_READ = Rule((Scope.READ,))
_SEE = Rule((Scope.READ, Scope.ENQUEUE, Scope.WORK), "path")
_MANAGE = Rule((Scope.MANAGE,))


@routes.add("GET", "/v1/queues", _READ, gives=QueuesView)
async def list_queues(call: Call) -> QueuesView:
    """Every queue that has tasks or a setting of its own, or is served by a live worker."""
    return QueuesView(queues=[shown_queue(row) for row in await inspect.queue_table(call.gateway.store)])


@routes.add("GET", "/v1/queues/{queue}", _SEE, gives=QueueView)
async def show_queue(call: Call) -> QueueView:
    """One queue; a name that nobody has used yet is that of an empty one."""
    return shown_queue(await _row(call))


@routes.add("POST", "/v1/queues/{queue}/pause", _MANAGE, takes=Nothing, gives=QueueView)
async def pause_queue(call: Call, _: Nothing) -> QueueView:
    """Stops handing out tasks of this queue; what is running goes on."""
    await actions.pause(call.gateway.store, call.path("queue"))
    return shown_queue(await _row(call))


@routes.add("POST", "/v1/queues/{queue}/resume", _MANAGE, takes=Nothing, gives=QueueView)
async def resume_queue(call: Call, _: Nothing) -> QueueView:
    """Hands out tasks of this queue again."""
    await actions.resume(call.gateway.store, call.path("queue"))
    return shown_queue(await _row(call))


@routes.add("POST", "/v1/queues/{queue}/order", _MANAGE, takes=OrderBody, gives=QueueView)
async def order_queue(call: Call, body: OrderBody) -> QueueView:
    """Says what priority is worth in this queue, also for the tasks that wait there."""
    await actions.set_order(call.gateway.store, call.path("queue"), body.order, body.step)
    return shown_queue(await _row(call))


@routes.add("GET", "/v1/queues/{queue}/scale", _SEE, takes=ScaleQuery, gives=ScaleView)
async def scale_queue(call: Call, query: ScaleQuery) -> ScaleView:
    """What an autoscaler wants to know, such as KEDA's metrics-api trigger."""
    row = await _row(call)
    ready, running = row.states.get(State.READY, 0), row.states.get(State.CLAIMED, 0)
    return ScaleView(
        queue=row.queue,
        backlog=ready + running,
        ready=ready,
        running=running,
        oldest_ready_seconds=(row.oldest_ready_ms or 0) / 1000,
        workers=row.workers,
        desired=math.ceil((ready + running) / query.per_worker),
    )


async def _row(call: Call) -> QueueRow:
    queue = check_queue(call.path("queue"))
    empty = QueueRow(
        queue=queue,
        paused=False,
        order=order_of(AGED_STEP_MS),
        step_ms=AGED_STEP_MS,
        states={},
        oldest_ready_ms=None,
        workers=0,
    )
    return next((row for row in await inspect.queue_table(call.gateway.store) if row.queue == queue), empty)
