"""Dead letters: looking, replaying, discarding."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET
from msgspec.structs import asdict, replace

from holdfast.admin import actions, inspect
from holdfast.admin.actions import MakeChange, Pace
from holdfast.api.guard import Rule, Scope
from holdfast.api.pages import STEP_WITH_HISTORY, find_page, shown
from holdfast.api.presence import while_there
from holdfast.api.routing import Call, Routes
from holdfast.api.showing import shown_changes, shown_task
from holdfast.core import lifecycle
from holdfast.core.redaction import redacted_text
from holdfast.errors import BadOption
from holdfast.stores.contract import Page, Query
from holdfast.wire.operator_shapes import DeadFilter, DeadQuery, DiscardManyBody, ReplayBody
from holdfast.wire.operator_views import BulkView, ErrorGroupsView, ErrorGroupView
from holdfast.wire.views import TaskPage

routes = Routes("dead letters")

_READ = Rule((Scope.READ,))
_MANAGE = Rule((Scope.MANAGE,))
#: A request that takes longer is better made several times.
_LONGEST_SECONDS = 60


@routes.add("GET", "/v1/dead-letters", _READ, takes=DeadQuery, gives=TaskPage)
async def find_dead_letters(call: Call, query: DeadQuery) -> TaskPage:
    """Dead letters that match, newest first, with their history, and a cursor to go on."""
    store = call.gateway.store
    wanted = replace(_query(query), limit=query.limit, cursor=query.cursor)

    async def find(part: Query) -> Page:
        return await inspect.with_history(store, await store.find(part))

    page = await find_page(find, wanted, STEP_WITH_HISTORY)
    tasks = await shown(page.tasks, lambda task: shown_task(task, call.caller, history=True))
    return TaskPage(tasks=tasks, cursor=page.cursor)


@routes.add("GET", "/v1/dead-letters/by-error", _READ, takes=DeadFilter, gives=ErrorGroupsView)
async def group_dead_letters(call: Call, query: DeadFilter) -> ErrorGroupsView:
    """The newest dead letters that match, grouped by task type and class of error."""
    found = await inspect.dead_letters_by_error(call.gateway.store, _query(query))
    # They are of many queues: only those who may change all of them see the errors as they are.
    shown = str if call.caller.may(Scope.MANAGE) else redacted_text
    groups = [ErrorGroupView(**{**asdict(group), "message": shown(group.message)}) for group in found.groups]
    return ErrorGroupsView(groups=groups, looked_at=found.looked_at, complete=found.complete)


@routes.add("POST", "/v1/dead-letters/replay", _MANAGE, takes=ReplayBody, gives=BulkView)
async def replay_dead_letters(call: Call, body: ReplayBody) -> BulkView:
    """Puts dead letters back with fresh attempts: these, or those that match."""
    return await _change(call, body, lifecycle.replay)


@routes.add("POST", "/v1/dead-letters/discard", _MANAGE, takes=DiscardManyBody, gives=BulkView)
async def discard_dead_letters(call: Call, body: DiscardManyBody) -> BulkView:
    """Deletes dead letters: these, or those that match; a record with payload and reason is kept."""
    return await _change(call, body, partial(lifecycle.discard, reason=actions.check_reason(body.reason)))


async def _change(call: Call, body: ReplayBody, make_change: MakeChange) -> BulkView:
    if (body.task_ids is UNSET) == (body.filter is UNSET):
        raise BadOption('give either "task_ids" or "filter"; an empty filter {} means all')
    store = call.gateway.store
    if body.task_ids is not UNSET:
        changes = [make_change(task_id) for task_id in body.task_ids]
        verdicts = await store.apply(changes) if changes else []
        tasks = shown_changes(body.task_ids, verdicts)
        return BulkView(matched=len(tasks), changed=sum(task.applied for task in tasks), tasks=tasks)
    if body.rate is not None and body.limit > body.rate * _LONGEST_SECONDS:
        most = int(body.rate * _LONGEST_SECONDS)
        raise BadOption(f"limit: {body.limit} at this rate takes over {_LONGEST_SECONDS} s; ask for {most} at a time")
    bulk = actions.in_bulk(
        store, _query(body.filter or DeadFilter()), make_change, limit=body.limit, pace=Pace(body.rate)
    )
    result = await while_there(call, bulk)
    return BulkView(matched=result.matched, changed=result.changed)


def _query(wanted: DeadFilter) -> Query:
    return actions.dead_letters(wanted.queue, wanted.type, wanted.error_type)
