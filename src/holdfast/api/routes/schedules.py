"""Schedules: looked at, made, changed, run."""

from __future__ import annotations

import functools
from hashlib import sha256

from msgspec import UNSET

from holdfast.admin import schedules as actions
from holdfast.api.enqueueing import arguments_of, idempotency_key, moved, retry_of
from holdfast.api.guard import Rule, Scope
from holdfast.api.routing import Call, Created, Routes
from holdfast.api.showing import shown_schedule
from holdfast.core.definition import changed_timing
from holdfast.core.schedule import Call as ScheduledCall
from holdfast.core.schedule import Timing
from holdfast.observe.tracing import carrier_of_request
from holdfast.producer.options import Options, changed
from holdfast.wire.operator_shapes import NextQuery, ScheduleBody
from holdfast.wire.operator_views import SchedulesView, ScheduleView, TicksView
from holdfast.wire.shapes import Nothing
from holdfast.wire.views import Recorded

routes = Routes("schedules")

_READ = Rule((Scope.READ,))
_MANAGE = Rule((Scope.MANAGE,))
#: How long a repeat of a run is known as such.
_KEY_MS = 86_400_000


@routes.add("GET", "/v1/schedules", _READ, gives=SchedulesView)
async def list_schedules(call: Call) -> SchedulesView:
    """All schedules, the soonest to tick first."""
    found = await actions.listed(call.gateway.store)
    return SchedulesView(schedules=[shown_schedule(each, call.caller) for each in found])


@routes.add("GET", "/v1/schedules/{name}", _READ, gives=ScheduleView)
async def show_schedule(call: Call) -> ScheduleView:
    """All that is known of a schedule."""
    return shown_schedule(await actions.one(call.gateway.store, call.path("name")), call.caller)


@routes.add("PUT", "/v1/schedules/{name}", _MANAGE, takes=ScheduleBody, gives=ScheduleView)
async def put_schedule(call: Call, body: ScheduleBody) -> ScheduleView:
    """Makes a schedule, or gives one that was made at run time this definition; paused or not as before."""
    timing = changed_timing(
        Timing(),
        cron=body.cron,
        every=body.every,
        timezone=body.timezone,
        jitter=body.jitter,
        missed=body.missed,
        window=body.window,
        overlap=body.overlap,
    )
    what = _call(body, call.gateway.settings.max_payload_bytes)
    return shown_schedule(await actions.put(call.gateway.store, call.path("name"), timing, what), call.caller)


@routes.add("DELETE", "/v1/schedules/{name}", _MANAGE, gives=ScheduleView)
async def remove_schedule(call: Call) -> ScheduleView:
    """Deletes a schedule; the tasks that it made stay. One that code declares comes back with its worker."""
    return shown_schedule(await actions.remove(call.gateway.store, call.path("name")), call.caller)


@routes.add("POST", "/v1/schedules/{name}/pause", _MANAGE, takes=Nothing, gives=ScheduleView)
async def pause_schedule(call: Call, _: Nothing) -> ScheduleView:
    """No ticks until it is resumed; one that runs goes on."""
    return shown_schedule(await actions.pause(call.gateway.store, call.path("name")), call.caller)


@routes.add("POST", "/v1/schedules/{name}/resume", _MANAGE, takes=Nothing, gives=ScheduleView)
async def resume_schedule(call: Call, _: Nothing) -> ScheduleView:
    """Ticks again, from now on."""
    return shown_schedule(await actions.resume(call.gateway.store, call.path("name")), call.caller)


@routes.add("POST", "/v1/schedules/{name}/run", _MANAGE, takes=Nothing, gives=Recorded, creates=True)
async def run_schedule(call: Call, _: Nothing) -> Created:
    """Makes a task besides the ticks; with an Idempotency-Key, a repeat gives the same one."""
    new_id = call.gateway.ids.task_id()
    key = idempotency_key(call)
    if key is not None:
        name = sha256(f"{call.path('name')}\n{key}".encode()).hexdigest()
        kept = await call.gateway.store.keep(f"http-run:{name}", new_id.encode(), _KEY_MS, None)
        new_id = (kept.value or b"").decode() or new_id
    trace = carrier_of_request(call.request.headers)
    made = await actions.run_now(call.gateway.store, call.path("name"), functools.partial(moved, new_id), trace)
    return Created(Recorded(task_id=made, created=True))


@routes.add("GET", "/v1/schedules/{name}/next", _READ, takes=NextQuery, gives=TicksView)
async def next_ticks(call: Call, query: NextQuery) -> TicksView:
    """The next ticks of a schedule, in its time zone; of a paused one, those that it would have."""
    times = await actions.upcoming(call.gateway.store, call.path("name"), query.count)
    return TicksView(name=call.path("name"), next=[each.isoformat() for each in times])


def _call(body: ScheduleBody, max_bytes: int) -> ScheduledCall:
    limits = {
        name: value for name in ("timeout", "hard_timeout", "expires") if (value := getattr(body, name)) is not UNSET
    }
    retry = None if body.retry is UNSET else retry_of(body.retry)
    options = changed(Options(), queue=body.queue, priority=body.priority, headers=body.headers, retry=retry, **limits)
    return ScheduledCall(
        type=body.type,
        queue=options.queue,
        payload=arguments_of(body, max_bytes),
        headers=options.headers,
        priority=options.priority,
        policy=options.policy,
    )
