"""Enqueue tasks: from a body to a task, with the options of a producer."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.core import payload
from holdfast.core.durations import duration_ms
from holdfast.core.ids import partition_of
from holdfast.core.names import check_request_id
from holdfast.core.retry import Retry, RunPolicy
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import BadArguments, BadOption, RequestConflict, StaleMap
from holdfast.observe.tracing import carrier_of_request
from holdfast.producer.options import Options, changed
from holdfast.server import permits
from holdfast.server.auth import Rule, Scope
from holdfast.server.budgets import CpuSlices
from holdfast.server.checks import check_not_of_schedule
from holdfast.server.operator_requests import ScheduleBody
from holdfast.server.requests import RetryBody, TaskBody, TasksBody
from holdfast.server.responses import Recorded, RecordedOrNot, RecordedTasks
from holdfast.server.routing import Call, Created, OneOf, Routes
from holdfast.stores import documents

#: The options that a body may have, under the names that the producer has for them.
_OPTIONS: Final = ("priority", "delay", "run_at", "headers", "timeout", "hard_timeout", "expires", "request_id")
_LONGEST_REQUEST_ID: Final = 200

routes = Routes("tasks")

_ENQUEUE_HERE = Rule((Scope.ENQUEUE,), "path")
_ENQUEUE = Rule((Scope.ENQUEUE,), "body")


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
    """Enqueues one task or several in this queue."""
    queue = call.path("queue")
    bodies = body.tasks if isinstance(body, TasksBody) else [body]
    for each in bodies:
        if each.queue is not UNSET and each.queue != queue:
            raise BadOption(f"queue: {each.queue} is not the queue of this address, {queue}; leave it out")
    tasks = await new_tasks(call, bodies, queue)
    answers = await _enqueue(call, tasks)
    if isinstance(body, TasksBody):
        return _recorded(answers)
    (answer,) = answers
    if answer.conflict is not None:
        raise RequestConflict(f"{answer.conflict}: task {answer.task_id}; use another request_id")
    recorded = Recorded(task_id=answer.task_id, created=answer.created)
    return Created(recorded) if answer.created else recorded


@routes.add("POST", "/v1/tasks", _ENQUEUE, takes=TasksBody, gives=RecordedTasks, batch=True)
async def enqueue_many(call: Call, body: TasksBody) -> RecordedTasks:
    """Enqueues tasks in any queues."""
    tasks = await new_tasks(call, body.tasks)
    permits.demand_queues(call, (task.queue for task in tasks))
    return _recorded(await _enqueue(call, tasks))


async def _enqueue(call: Call, tasks: list[NewTask]) -> list[Enqueued]:
    try:
        answers = await call.server.store.enqueue(tasks) if tasks else []
    except StaleMap:
        await refuse_own_ids(call, tasks)
        raise
    return permits.conflicts_of_own(call, answers)


def _recorded(answers: list[Enqueued]) -> RecordedTasks:
    return RecordedTasks(
        tasks=[
            RecordedOrNot(task_id=answer.task_id, created=answer.created, conflict=answer.conflict)
            for answer in answers
        ]
    )


# -- from bodies to tasks ------------------------------------------------------------------------------------------


def idempotency_key(call: Call) -> str | None:
    """The key that identifies repeats of the request, if the client sent one."""
    key = call.request.headers.get("idempotency-key")
    return None if key is None else check_request_id(key)


def moved(task_id: str, partition: int) -> str:
    """The same task_id in this partition."""
    return f"{task_id[:12]}{partition:04x}{task_id[16:]}"


async def new_tasks(call: Call, bodies: Sequence[TaskBody], queue: str | None = None) -> list[NewTask]:
    """The tasks that these bodies describe, in the trace of the request; a repeat with its key finds the same ones."""
    server, key = call.server, idempotency_key(call)
    trace = carrier_of_request(call.request.headers)
    place = await server.placement()
    tasks, slices = [], CpuSlices()
    for number, body in enumerate(bodies):
        options = _options(body, queue, _request_id(key, number, len(bodies)), server.settings.policy)
        task_id = body.task_id or server.ids.task_id(place(options.queue, options.request_id))
        arguments = arguments_of(body, server.settings.max_payload_bytes)
        tasks.append(check_not_of_schedule(options.new_task(task_id, body.type, arguments, trace)))
        await slices.after(len(arguments))
    return tasks


async def refuse_own_ids(call: Call, tasks: Sequence[NewTask]) -> None:
    """Refuses a task_id of the client in a partition where its queue has no tasks: no repeat would help."""
    current = await documents.partition_map(call.server.store)
    for task in tasks:
        partition = partition_of(task.task_id)
        if not current.allows(task.queue, partition, has_request_id=task.request_id is not None):
            raise BadOption(
                f"task_id: {task.task_id} names partition {partition} by its digits 13 to 16, where queue {task.queue} "
                "has no tasks; leave task_id out and send a request_id"
            )


def arguments_of(body: TaskBody | ScheduleBody, max_bytes: int) -> bytes:
    """The arguments, which must be an object within the limits."""
    if body.arguments is UNSET:
        return b"{}"
    data = bytes(body.arguments)
    if data[:1] != b"{":
        raise BadArguments(f'arguments of {body.type}: write an object with their names, as in {{"url": "cat.jpg"}}')
    payload.check(data, f"arguments of {body.type}", max_bytes)
    return data


def retry_of(body: RetryBody) -> Retry:
    """The retry policy, checked."""
    return Retry(
        max_attempts=body.max_attempts,
        base=body.base,
        cap=body.cap,
        jitter=body.jitter,
        give_up_on=body.give_up_on,
        retry_on=body.retry_on,
        dead_letter=body.dead_letter,
    )


def kept_as_asked(policy: RunPolicy, body: TaskBody | ScheduleBody) -> RunPolicy:
    """The policy with the times for which the task is to be kept, where the body says so."""
    given = {
        f"{name}_ms": duration_ms(value, name)
        for name in ("result_ttl", "dead_letter_ttl")
        if (value := getattr(body, name)) is not UNSET
    }
    return replace(policy, **given) if given else policy


def _options(body: TaskBody, queue: str | None, request_id: str | None, policy: RunPolicy) -> Options:
    given: dict[str, Any] = {name: value for name in _OPTIONS if (value := getattr(body, name)) is not UNSET}
    if body.retry is not UNSET:
        given["retry"] = retry_of(body.retry)
    if request_id is not None and body.task_id is UNSET:
        given.setdefault("request_id", request_id)
    chosen = queue or _or_none(body.queue)
    return changed(Options(policy=kept_as_asked(policy, body)), queue=chosen, **given)


def _request_id(key: str | None, number: int, count: int) -> str | None:
    if key is None:
        return None
    request_id = key if count == 1 else f"{key}:{number}"
    if len(request_id) > _LONGEST_REQUEST_ID:
        request_id = sha256(request_id.encode()).hexdigest()
    return check_request_id(request_id)


def _or_none(value: str | UnsetType) -> str | None:
    return None if value is UNSET else value
