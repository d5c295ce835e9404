"""Workers: looking, telling them what to do, and hearing of those that come over HTTP."""

from __future__ import annotations

from holdfast.admin import inspect
from holdfast.admin import workers as actions
from holdfast.api import permits
from holdfast.api.checks import check_number, check_worker
from holdfast.api.guard import Rule, Scope
from holdfast.api.routing import Call, Routes
from holdfast.core.durations import duration_ms
from holdfast.stores.contract import WorkerRecord
from holdfast.wire.limits import LONGEST_TTL_MS
from holdfast.wire.operator_shapes import AnnounceBody, ConcurrencyBody
from holdfast.wire.operator_views import ConcurrencyView, OrdersView, WorkersView

routes = Routes("workers")

_READ = Rule((Scope.READ,))


@routes.add("GET", "/v1/workers", _READ, gives=WorkersView)
async def list_workers(call: Call) -> WorkersView:
    """Every worker heard of lately, the living first."""
    return WorkersView(workers=await inspect.worker_table(call.gateway.store))


@routes.add("GET", "/v1/workers/{worker_id}", _READ, gives=WorkerRecord)
async def show_worker(call: Call) -> WorkerRecord:
    """The worker with this id, or the only one whose id begins like that."""
    return await actions.one_worker(call.gateway.store, call.path("worker_id"))


@routes.add(
    "POST",
    "/v1/workers/{worker_id}/concurrency",
    Rule((Scope.MANAGE,)),
    takes=ConcurrencyBody,
    gives=ConcurrencyView,
)
async def set_concurrency(call: Call, body: ConcurrencyBody) -> ConcurrencyView:
    """Orders so many tasks at once in each process; it is heeded with the next heartbeat."""
    (worker_id,) = await actions.set_concurrency(call.gateway.store, [call.path("worker_id")], body.concurrency)
    return ConcurrencyView(worker_id=worker_id, concurrency=body.concurrency)


@routes.add(
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
    orders = await call.gateway.store.announce(worker, ttl_ms)
    return OrdersView(concurrency=None if orders is None else orders.concurrency)
