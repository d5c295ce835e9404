"""Recording tasks, and looking at them."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.admin.why import Explanation, why
from holdfast.api import permits
from holdfast.api.enqueueing import new_tasks
from holdfast.api.guard import Rule, Scope
from holdfast.api.pages import find_page, shown
from holdfast.api.presence import while_there
from holdfast.api.routing import Call, Created, OneOf, Routes
from holdfast.api.settling import settle_one
from holdfast.api.showing import shown_task, without_secrets
from holdfast.core.durations import duration_ms
from holdfast.core.ids import check_task_id
from holdfast.core.progress import kept_log
from holdfast.core.redaction import redacted_text
from holdfast.core.task import FINAL_STATES, Enqueued, Task
from holdfast.errors import BadOption, RequestConflict, UnknownTask
from holdfast.stores.contract import Query
from holdfast.wire.operator_shapes import TaskQuery, TasksQuery
from holdfast.wire.shapes import CancelBody, CancelChange, PrioritizeBody, PrioritizeChange, TaskBody, TasksBody
from holdfast.wire.views import (
    ChangeView,
    HistoryView,
    LogView,
    Recorded,
    RecordedOrNot,
    RecordedTasks,
    TaskPage,
    TaskView,
)

routes = Routes("tasks")

_ENQUEUE_HERE = Rule((Scope.ENQUEUE,), "path")
_ENQUEUE = Rule((Scope.ENQUEUE,), "body")
_SEE = Rule((Scope.READ, Scope.ENQUEUE, Scope.WORK), "task")
_CANCEL = Rule((Scope.MANAGE, Scope.ENQUEUE), "task")


@routes.add(
    "POST",
    "/v1/queues/{queue}/tasks",
    _ENQUEUE_HERE,
    takes=OneOf(TaskBody, TasksBody, "tasks"),
    gives=OneOf(Recorded, RecordedTasks, "tasks"),
    batch=True,
    creates=True,
)
async def enqueue(call: Call, body: TaskBody | TasksBody) -> Created | Recorded | RecordedTasks:
    """Records one task in this queue, or several."""
    queue = call.path("queue")
    bodies = body.tasks if isinstance(body, TasksBody) else [body]
    for each in bodies:
        if each.queue is not UNSET and each.queue != queue:
            raise BadOption(f"queue: {each.queue} is not the queue of this address, {queue}; leave it out")
    tasks = await new_tasks(call, bodies, queue)
    answers = await call.gateway.store.enqueue(tasks) if tasks else []
    if isinstance(body, TasksBody):
        return _recorded(answers)
    (answer,) = answers
    if answer.conflict is not None:
        raise RequestConflict(f"{answer.conflict}: task {answer.task_id}; use another request_id")
    recorded = Recorded(task_id=answer.task_id, created=answer.created)
    return Created(recorded) if answer.created else recorded


@routes.add("POST", "/v1/tasks", _ENQUEUE, takes=TasksBody, gives=RecordedTasks, batch=True)
async def enqueue_many(call: Call, body: TasksBody) -> RecordedTasks:
    """Records tasks in any queues."""
    tasks = await new_tasks(call, body.tasks)
    permits.demand_queues(call, (task.queue for task in tasks))
    return _recorded(await call.gateway.store.enqueue(tasks) if tasks else [])


@routes.add("GET", "/v1/tasks/{task_id}", _SEE, takes=TaskQuery, gives=TaskView)
async def show_task(call: Call, query: TaskQuery) -> TaskView:
    """All that is known of a task; with `wait`, after its end or after that time, whichever comes first."""
    task = await _task(call)
    wait_ms = min(duration_ms(query.wait, "wait"), call.gateway.settings.longest_wait_ms)
    if wait_ms and task.state not in FINAL_STATES:
        await while_there(call, call.gateway.results.ended(task.task_id, wait_ms / 1000))
        task = await _task(call)
    (view,) = await shown([task], lambda task: shown_task(task, call.caller, history=True))
    return view


@routes.add("GET", "/v1/tasks", Rule((Scope.READ,)), takes=TasksQuery, gives=TaskPage)
async def find_tasks(call: Call, query: TasksQuery) -> TaskPage:
    """Tasks that match, newest first, and a cursor to go on."""
    wanted = Query(
        states=frozenset(query.state) or None,
        queue=query.queue,
        type=query.type,
        worker_id=query.worker_id,
        error_type=query.error_type,
        limit=query.limit,
        cursor=query.cursor,
    )
    page = await find_page(call.gateway.store.find, wanted)
    tasks = await shown(page.tasks, lambda task: shown_task(task, call.caller, history=False))
    return TaskPage(tasks=tasks, cursor=page.cursor)


@routes.add("GET", "/v1/tasks/{task_id}/why", _SEE, gives=Explanation)
async def explain_task(call: Call) -> Explanation:
    """Why a task stands where it stands, in a word and in a sentence."""
    task = await _task(call)
    found = await why(permits.OwnPart(call), task.task_id, call.gateway.clock)
    return found if call.caller.sees_secrets(task.queue) else replace(found, text=redacted_text(found.text))


@routes.add("GET", "/v1/tasks/{task_id}/history", _SEE, gives=HistoryView)
async def show_history(call: Call) -> HistoryView:
    """The runs of a task that have ended, and its log lines."""
    (task,) = await shown([await _task(call)], lambda task: without_secrets(task, call.caller))
    log = [LogView(at_ms=line.at_ms, level=line.level, text=line.text) for line in kept_log(task)]
    return HistoryView(task_id=task.task_id, attempts=task.history, log=log)


@routes.add("POST", "/v1/tasks/{task_id}/cancel", _CANCEL, takes=CancelBody, gives=ChangeView)
async def cancel_task(call: Call, body: CancelBody) -> ChangeView:
    """Keeps a waiting task from running, tells a running one to stop; its state says which."""
    task_id = task_id_of(call)
    if not call.caller.may(Scope.MANAGE):
        await _task(call)
    verdict = await settle_one(call, CancelChange(task_id=task_id, reason=body.reason))
    return ChangeView.of(task_id, verdict)


@routes.add("POST", "/v1/tasks/{task_id}/prioritize", Rule((Scope.MANAGE,)), takes=PrioritizeBody, gives=ChangeView)
async def prioritize_task(call: Call, body: PrioritizeBody) -> ChangeView:
    """Gives a waiting task another priority."""
    task_id = task_id_of(call)
    verdict = await settle_one(call, PrioritizeChange(task_id=task_id, priority=body.priority))
    return ChangeView.of(task_id, verdict)


def task_id_of(call: Call) -> str:
    """The task_id in the address; one that cannot be is that of no task."""
    return check_task_id(call.path("task_id"))


async def _task(call: Call) -> Task:
    """The task, if it is one of the caller's; not yet as he may see it."""
    task_id = task_id_of(call)
    (task,) = permits.visible(call, await call.gateway.store.get([task_id]))
    if task is None:
        raise UnknownTask(f"no task {task_id} in this store")
    return task


def _recorded(answers: list[Enqueued]) -> RecordedTasks:
    return RecordedTasks(
        tasks=[
            RecordedOrNot(task_id=answer.task_id, created=answer.created, conflict=answer.conflict)
            for answer in answers
        ]
    )
