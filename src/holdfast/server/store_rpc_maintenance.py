"""The store contract over HTTP: workers, leadership, maintenance, partitions."""

from __future__ import annotations

from holdfast.server import permits
from holdfast.server.checks import check_id, check_number, check_numbers, check_worker
from holdfast.server.routing import Call, Routes
from holdfast.server.store_rpc import ADMIN, WORK, answers
from holdfast.stores.contract import MAX_BATCH, Expired, Finding, Leadership, Promoted, WorkerOrders
from holdfast.stores.remote import calls
from holdfast.stores.remote.limits import LONGEST_TTL_MS

routes = Routes("store")


@answers(calls.ANNOUNCE, WORK, routes)
async def _announce(call: Call, request: calls.Announce) -> WorkerOrders | None:
    """Records that a worker lives."""
    check_worker(request.worker)
    permits.demand_queues(call, request.worker.queues)
    ttl_ms = check_number(request.ttl_ms, "ttl_ms", LONGEST_TTL_MS)
    return await call.server.announcements.announce(call, request.worker, ttl_ms)


@answers(calls.LEAD, ADMIN, routes)
async def _lead(call: Call, request: calls.Lead) -> Leadership:
    """Takes, renews, gives up or looks at a leadership."""
    check_id(request.name, "name")
    if request.owner is not None:
        check_id(request.owner, "owner")
    return await call.store.lead(request.name, request.owner, check_number(request.ttl_ms, "ttl_ms"))


@answers(calls.PROMOTE, ADMIN, routes)
async def _promote(call: Call, request: calls.Epoch) -> Promoted:
    """Moves due tasks to `ready`."""
    return await call.store.promote(request.epoch, check_number(request.limit, "limit", MAX_BATCH))


@answers(calls.EXPIRED, ADMIN, routes)
async def _expired(call: Call, request: calls.Limit) -> Expired:
    """Claims whose lease has expired, with their tokens, and tasks not started in time."""
    return await call.store.expired(check_number(request.limit, "limit", MAX_BATCH))


@answers(calls.PRUNE, ADMIN, routes)
async def _prune(call: Call, request: calls.Prune) -> int:
    """Deletes what is past its retention."""
    check_numbers(request.retention)
    return await call.store.prune(request.epoch, request.retention, check_number(request.limit, "limit", MAX_BATCH))


@answers(calls.PROBE, ADMIN, routes)
async def _probe(call: Call, _: calls.NoArguments) -> list[Finding]:
    """What the store says about itself."""
    return await call.store.probe()


@answers(calls.PARTITIONS, ADMIN, routes)
async def _partitions(call: Call, _: calls.NoArguments) -> list[str]:
    """The partitions by their URLs without passwords."""
    return [partition.url for partition in await call.store.partitions()]


@answers(calls.MIGRATE, ADMIN, routes)
async def _migrate(call: Call, request: calls.Migrate) -> list[str]:
    """Brings the schema up to the version of the server."""
    return await call.store.migrate(dry_run=request.dry_run)
