"""Schedules: list, create, change, run."""

from __future__ import annotations

import functools
from hashlib import sha256

from msgspec import UNSET

from holdfast.admin import schedules as actions
from holdfast.admin.views import ScheduleView
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.record import ScheduledCall, Timing
from holdfast.observe.tracing import carrier_of_request
from holdfast.producer.options import Options, changed
from holdfast.server.auth import Rule, Scope
from holdfast.server.enqueue import arguments_of, idempotency_key, kept_as_asked, moved, retry_of
from holdfast.server.operator_requests import NextQuery, ScheduleBody
from holdfast.server.rendering import PAGE_BYTES, shown_schedule
from holdfast.server.requests import Nothing
from holdfast.server.responses import OccurrencesView, Recorded, SchedulesView, numbers
from holdfast.server.routing import Call, Created, Routes
from holdfast.server.server import ServerSettings
from holdfast.stores import documents
from holdfast.stores.capabilities import in_part

routes = Routes("schedules")

_READ = Rule((Scope.READ,))
_MANAGE = Rule((Scope.MANAGE,))
#: How long a repeat of a run is known as such.
_KEY_MS = 86_400_000


@routes.add("GET", "/v1/schedules", _READ, gives=SchedulesView)
async def list_schedules(call: Call) -> SchedulesView:
    """All schedules, by their next occurrence."""
    await call.answer_share.wait(PAGE_BYTES)
    view = in_part(call.server.store)
    found = await actions.listed(view.store)
    schedules = [shown_schedule(each, call.caller) for each in found]
    return SchedulesView(schedules=schedules, left_out=numbers(view.left_out))


@routes.add("GET", "/v1/schedules/{name}", _READ, gives=ScheduleView)
async def show_schedule(call: Call) -> ScheduleView:
    """All that is known of a schedule."""
    return shown_schedule(await actions.one(call.server.store, call.path("name")), call.caller)


@routes.add("PUT", "/v1/schedules/{name}", _MANAGE, takes=ScheduleBody, gives=ScheduleView)
async def put_schedule(call: Call, body: ScheduleBody) -> ScheduleView:
    """Creates a schedule, or changes one that was created at run time; paused or not as before."""
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
    what = _call(body, call.server.settings)
    return shown_schedule(await actions.put(call.server.store, call.path("name"), timing, what), call.caller)


@routes.add("DELETE", "/v1/schedules/{name}", _MANAGE, gives=ScheduleView)
async def remove_schedule(call: Call) -> ScheduleView:
    """Deletes a schedule; its tasks stay. One that is declared in code comes back with its worker."""
    return shown_schedule(await actions.remove(call.server.store, call.path("name")), call.caller)


@routes.add("POST", "/v1/schedules/{name}/pause", _MANAGE, takes=Nothing, gives=ScheduleView)
async def pause_schedule(call: Call, _: Nothing) -> ScheduleView:
    """Pauses a schedule; a task that runs goes on."""
    return shown_schedule(await actions.pause(call.server.store, call.path("name")), call.caller)


@routes.add("POST", "/v1/schedules/{name}/resume", _MANAGE, takes=Nothing, gives=ScheduleView)
async def resume_schedule(call: Call, _: Nothing) -> ScheduleView:
    """Resumes a schedule, from now on."""
    return shown_schedule(await actions.resume(call.server.store, call.path("name")), call.caller)


@routes.add("POST", "/v1/schedules/{name}/run", _MANAGE, takes=Nothing, gives=Recorded, creates=True)
async def run_schedule(call: Call, _: Nothing) -> Created:
    """Enqueues a task of the schedule now; with an Idempotency-Key, a repeat gives the same task."""
    new_id = call.server.ids.task_id()
    key = idempotency_key(call)
    if key is not None:
        name = sha256(f"{call.path('name')}\n{key}".encode()).hexdigest()
        kept = await documents.keep(call.server.store, f"http-run:{name}", new_id.encode(), _KEY_MS, None)
        new_id = (kept.value or b"").decode() or new_id
    trace = carrier_of_request(call.request.headers)
    made = await actions.run_now(call.server.store, call.path("name"), functools.partial(moved, new_id), trace)
    return Created(Recorded(task_id=made, created=True))


@routes.add("GET", "/v1/schedules/{name}/next", _READ, takes=NextQuery, gives=OccurrencesView)
async def next_occurrences(call: Call, query: NextQuery) -> OccurrencesView:
    """The next occurrences of a schedule, in its time zone; of a paused one, those that it would have."""
    times = await actions.upcoming(call.server.store, call.path("name"), query.count)
    return OccurrencesView(name=call.path("name"), next=[each.isoformat() for each in times])


def _call(body: ScheduleBody, settings: ServerSettings) -> ScheduledCall:
    limits = {
        name: value for name in ("timeout", "hard_timeout", "expires") if (value := getattr(body, name)) is not UNSET
    }
    retry = None if body.retry is UNSET else retry_of(body.retry)
    default = Options(policy=kept_as_asked(settings.policy, body))
    options = changed(default, queue=body.queue, priority=body.priority, headers=body.headers, retry=retry, **limits)
    return ScheduledCall(
        type=body.type,
        queue=options.queue,
        payload=arguments_of(body, settings.max_payload_bytes),
        headers=options.headers,
        priority=options.priority,
        policy=options.policy,
    )
