"""Claim tasks, extend and settle claims."""

from __future__ import annotations

from hashlib import sha256

from msgspec import UNSET

from holdfast.core.durations import duration_ms
from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import UNKNOWN
from holdfast.core.task import UNKNOWN_CLAIM, Extension, Hold
from holdfast.errors import UnknownTask
from holdfast.server import permits
from holdfast.server import tasks as task_routes
from holdfast.server.auth import Denied, Rule, Scope
from holdfast.server.budgets import CpuSlices
from holdfast.server.checks import check_number
from holdfast.server.enqueue import idempotency_key
from holdfast.server.polls import while_there
from holdfast.server.rendering import shown_changes, shown_claim
from holdfast.server.requests import (
    AckBody,
    AckChange,
    AnyChange,
    ExtendBody,
    ExtendManyBody,
    FailBody,
    FailChange,
    HoldBody,
    ReleaseBody,
    ReleaseChange,
    ReserveBody,
    SettleBody,
    SnoozeBody,
    SnoozeChange,
)
from holdfast.server.responses import ChangeView, ExtendedView, ExtensionView, ReservedView, SettledView
from holdfast.server.routing import Call, Routes
from holdfast.server.tasks import progress_of, settle_one, task_id_of
from holdfast.stores.contract import Reserve
from holdfast.stores.remote import problems
from holdfast.stores.remote.limits import LONGEST_LEASE_MS, SHORTEST_LEASE_MS

routes = Routes("claims")

_WORK = Rule((Scope.WORK,), "body")
_HELD = Rule((Scope.WORK,), "task")
_SETTLE = Rule((Scope.WORK, Scope.ENQUEUE, Scope.MANAGE), "task")


@routes.add("POST", "/v1/reserve", _WORK, takes=ReserveBody, gives=ReservedView, batch=True)
async def reserve(call: Call, body: ReserveBody) -> ReservedView:
    """Claims tasks that are ready; with `wait`, as soon as there are any, or none after that time."""
    request = _request(call, body)
    permits.demand_queues(call, (share.queue for share in request.shares))
    settle = await task_routes.to_changes(call, body.settle)
    own = await permits.own_changes(call, settle)
    server = call.server
    wait_ms = min(duration_ms(body.wait, "wait"), server.settings.longest_wait_ms)
    hand_back = _is_ours(call, body)
    poll = server.polls.reserve(request, own.items, wait_ms / 1000, call.answer_share, hand_back=hand_back)
    reserved = await (while_there(call, poll) if wait_ms else poll)
    server.metrics.began(reserved.tasks)
    server.metrics.ended(own.items, reserved.verdicts)
    slices = CpuSlices()
    tasks = []
    for task in permits.handed_out(call, reserved.tasks):
        tasks.append(shown_claim(task, request.lease_ms))
        await slices.after(len(task.payload))
    return ReservedView(
        claim_id=request.claim_id,
        tasks=tasks,
        settled=shown_changes([change.task_id for change in settle], own.with_others(reserved.verdicts, UNKNOWN)),
    )


@routes.add("POST", "/v1/settle", _SETTLE, takes=SettleBody, gives=SettledView, batch=True)
async def settle(call: Call, body: SettleBody) -> SettledView:
    """Makes any changes to tasks, one answer each."""
    verdicts = await task_routes.settle(call, body.changes)
    return SettledView(changes=shown_changes([change.task_id for change in body.changes], verdicts))


@routes.add("POST", "/v1/tasks/{task_id}/ack", _HELD, takes=AckBody, gives=ChangeView)
async def ack(call: Call, body: AckBody) -> ChangeView:
    """The attempt succeeded. The same again is a success; a stale claim is refused."""
    return await _settled(call, AckChange(task_id=task_id_of(call), token=body.token, result=body.result))


@routes.add("POST", "/v1/tasks/{task_id}/fail", _HELD, takes=FailBody, gives=ChangeView)
async def fail(call: Call, body: FailBody) -> ChangeView:
    """The attempt failed; whether another one follows, and when, its state says."""
    change = FailChange(
        task_id=task_id_of(call),
        token=body.token,
        error=body.error,
        retryable=body.retryable,
        retry_in=body.retry_in,
    )
    return await _settled(call, change)


@routes.add("POST", "/v1/tasks/{task_id}/snooze", _HELD, takes=SnoozeBody, gives=ChangeView)
async def snooze(call: Call, body: SnoozeBody) -> ChangeView:
    """Runs it again later; no attempt is used up."""
    return await _settled(call, SnoozeChange(task_id=task_id_of(call), token=body.token, delay=body.delay))


@routes.add("POST", "/v1/tasks/{task_id}/release", _HELD, takes=ReleaseBody, gives=ChangeView)
async def release(call: Call, body: ReleaseBody) -> ChangeView:
    """Hands it back unfinished; no attempt is used up."""
    return await _settled(call, ReleaseChange(task_id=task_id_of(call), token=body.token))


@routes.add("POST", "/v1/tasks/{task_id}/extend", _HELD, takes=ExtendBody, gives=ExtensionView)
async def extend(call: Call, body: ExtendBody) -> ExtensionView:
    """Gives a claim more time, and tells whether the task was cancelled meanwhile."""
    hold = HoldBody(task_id=task_id_of(call), token=body.token, progress=body.progress)
    (extension,) = await _extended(call, [hold], _lease_ms(body.lease))
    if extension.reason == "unknown":
        raise UnknownTask(f"no task {hold.task_id} in this store")
    if not extension.held:
        lost = f"the claim of task {hold.task_id} is lost"
        raise Denied(problems.STALE_CLAIM.problem(lost, reason=extension.reason))
    return _shown(hold, extension)


@routes.add("POST", "/v1/extend", _HELD, takes=ExtendManyBody, gives=ExtendedView, batch=True)
async def extend_many(call: Call, body: ExtendManyBody) -> ExtendedView:
    """Gives many claims more time, one answer each."""
    extensions = await _extended(call, body.holds, _lease_ms(body.lease))
    return ExtendedView(holds=[_shown(*pair) for pair in zip(body.holds, extensions, strict=True)])


def _request(call: Call, body: ReserveBody) -> Reserve:
    shares = [
        QueueShare(each, body.max_tasks) if isinstance(each, str) else QueueShare(each.queue, each.limit)
        for each in body.queues
    ]
    return Reserve(
        claim_id=_claim_id(call, body),
        worker_id=body.worker_id,
        shares=shares,
        max_tasks=body.max_tasks,
        lease_ms=_lease_ms(body.lease),
        types=None if body.types is None else frozenset(body.types),
        fresh=body.fresh or _is_ours(call, body),
    )


def _is_ours(call: Call, body: ReserveBody) -> bool:
    """Whether the server made the claim_id, so that no repeated request can ask for its tasks."""
    return body.claim_id is UNSET and "idempotency-key" not in call.request.headers


def _claim_id(call: Call, body: ReserveBody) -> str:
    """The client's, one that the repeat of this request has too, or one of our own."""
    key = idempotency_key(call)
    if body.claim_id is not UNSET:
        return body.claim_id
    if key is None:
        return call.server.ids.claim_id()
    return sha256(f"{call.caller.name}\n{key}".encode()).hexdigest()[:32]


def _lease_ms(lease: float | str) -> int:
    return check_number(duration_ms(lease, "lease"), "lease in milliseconds", LONGEST_LEASE_MS, SHORTEST_LEASE_MS)


async def _settled(call: Call, change: AnyChange) -> ChangeView:
    return ChangeView.of(change.task_id, await settle_one(call, change))


async def _extended(call: Call, bodies: list[HoldBody], lease_ms: int) -> list[Extension]:
    max_bytes = call.server.settings.max_payload_bytes
    holds = [Hold(body.task_id, body.token, progress_of(body.progress, max_bytes)) for body in bodies]
    own = await permits.own_holds(call, holds)
    extensions = await call.server.store.extend(own.items, lease_ms) if own.items else []
    return own.with_others(extensions, UNKNOWN_CLAIM)


def _shown(hold: HoldBody, extension: Extension) -> ExtensionView:
    return ExtensionView(
        task_id=hold.task_id,
        held=extension.held,
        cancel_requested=extension.cancel_requested,
        reason=extension.reason,
    )
