"""The rest of the store contract: upkeep, settings, schedules, partitions."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from holdfast.api import permits
from holdfast.api.checks import (
    check_headers,
    check_id,
    check_number,
    check_numbers,
    check_policy,
    check_size,
    check_task,
    check_text,
    check_worker,
)
from holdfast.api.guard import ANYBODY_KNOWN, Scope
from holdfast.api.routes.store_calls import ADMIN, MANAGE, READ, WORK, answers
from holdfast.api.routing import Call, Routes
from holdfast.api.showing import schedule_without_secrets
from holdfast.core.definition import checked
from holdfast.core.names import check_queue, check_schedule, check_type
from holdfast.core.partitions import PartitionMap
from holdfast.core.priority import STRICT_STEP_MS
from holdfast.core.schedule import Schedule
from holdfast.stores.contract import (
    MAX_BATCH,
    DueSchedules,
    Duty,
    Finding,
    WorkerOrders,
)
from holdfast.wire import calls
from holdfast.wire.limits import LONGEST_TTL_MS, MAX_SCHEDULES

routes = Routes("store")


@answers(calls.ANNOUNCE, WORK, routes)
async def _announce(call: Call, request: calls.Announce) -> WorkerOrders | None:
    """Records that a worker lives."""
    check_worker(request.worker)
    permits.demand_queues(call, request.worker.queues)
    return await call.store.announce(request.worker, check_number(request.ttl_ms, "ttl_ms", LONGEST_TTL_MS))


@answers(calls.ORDER, MANAGE, routes)
async def _order(call: Call, request: calls.Order) -> bool:
    """Leaves orders for a worker."""
    if request.orders.concurrency is not None:
        check_number(request.orders.concurrency, "concurrency", MAX_BATCH)
    return await call.store.order(check_id(request.worker_id, "worker_id"), request.orders)


@answers(calls.HOLD_DUTY, ADMIN, routes)
async def _hold_duty(call: Call, request: calls.HoldDuty) -> Duty:
    """Takes, keeps or lets go of a duty."""
    if request.owner:  # without one, it is only asked who has the duty
        check_id(request.owner, "owner")
    return await call.store.hold_duty(
        check_id(request.name, "name"), request.owner, check_number(request.ttl_ms, "ttl_ms")
    )


@answers(calls.PAUSE, MANAGE, routes)
async def _pause(call: Call, request: calls.Pause) -> None:
    """Stops or resumes a queue."""
    await call.store.pause(check_queue(request.queue), request.paused)


@answers(calls.SET_STEP, MANAGE, routes)
async def _set_step(call: Call, request: calls.SetStep) -> None:
    """Says what priority is worth in a queue."""
    await call.store.set_step(check_queue(request.queue), check_number(request.step_ms, "step_ms", STRICT_STEP_MS, 1))


@answers(calls.PRUNE, ADMIN, routes)
async def _prune(call: Call, request: calls.Prune) -> int:
    """Deletes what is past its retention."""
    check_numbers(request.retention)
    return await call.store.prune(request.epoch, request.retention, check_number(request.limit, "limit", MAX_BATCH))


@answers(calls.PROBE, READ, routes)
async def _probe(call: Call, _: calls.NoArguments) -> list[Finding]:
    """What the store says about itself."""
    return await call.store.probe()


# -- schedules ---------------------------------------------------------------------------------------------------


@answers(calls.SCHEDULES, READ, routes)
async def _schedules(call: Call, request: calls.Schedules) -> DueSchedules:
    """Schedules by the time of their next tick."""
    if request.due_within_ms is not None:
        check_number(request.due_within_ms, "due_within_ms")
    due = await call.store.schedules(request.due_within_ms, check_number(request.limit, "limit", MAX_SCHEDULES))
    return DueSchedules(due.now_ms, [schedule_without_secrets(each, call.caller) for each in due.schedules])


@answers(calls.SCHEDULE, READ, routes)
async def _schedule(call: Call, request: calls.Name) -> Schedule | None:
    """One schedule."""
    schedule = await call.store.schedule(check_schedule(request.name))
    return None if schedule is None else schedule_without_secrets(schedule, call.caller)


@answers(calls.PUT_SCHEDULE, MANAGE, routes)
async def _put_schedule(call: Call, request: calls.PutSchedule) -> bool:
    """Replaces a schedule and records tasks."""
    check_schedule(request.name)
    check_size(request.tasks, "tasks")
    for task in request.tasks:
        check_task(task, call.gateway.settings.max_payload_bytes)
    if request.epoch is not None:
        permits.demand_scope(call, Scope.ADMIN, "a tick by the owner of the upkeep")
    if request.new is not None:
        _check_schedule_record(request.new, call.gateway.settings.max_payload_bytes)
    return await call.store.put_schedule(request.name, request.new, request.expected, request.tasks, request.epoch)


def _check_schedule_record(schedule: Schedule, max_payload: int) -> None:
    call = schedule.call
    check_numbers(schedule)
    checked(schedule.timing)
    check_queue(call.queue)
    check_type(call.type)
    check_headers(call.headers)
    check_policy(call.policy)
    check_size(call.payload, "bytes of the arguments", max_payload)
    for text in (schedule.source, schedule.declared, schedule.skipped_because):
        check_text(text, "schedule")


# -- partitions --------------------------------------------------------------------------------------------------


@answers(calls.PARTITION_MAP, ANYBODY_KNOWN, routes)
async def _partition_map(call: Call, _: calls.NoArguments) -> PartitionMap:
    """The partition map; the addresses in it are for those who may read."""
    found = await call.store.partition_map()
    return found if call.caller.may(Scope.READ) else replace(found, shards=("",) * len(found.shards))


@answers(calls.PUT_PARTITION_MAP, ADMIN, routes)
async def _put_partition_map(call: Call, request: calls.NewMap) -> PartitionMap:
    """Keeps a new partition map."""
    check_numbers(request.new)
    return await call.store.put_partition_map(request.new)


@answers(calls.PARTITIONS, ADMIN, routes)
async def _partitions(call: Call, _: calls.NoArguments) -> list[str]:
    """The partitions by their URLs without passwords."""
    return [partition.url for partition in await asyncio.to_thread(call.store.partitions)]


@answers(calls.MIGRATE, ADMIN, routes)
async def _migrate(call: Call, request: calls.Migrate) -> list[str]:
    """Brings the schema up to the version of the gateway."""
    return await call.store.migrate(dry_run=request.dry_run)
