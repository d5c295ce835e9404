"""From a body to a task: options checked as the producer's own, ids made here if the client gave none."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from msgspec import UNSET, UnsetType

from holdfast.api.routing import Call
from holdfast.api.turns import Turns
from holdfast.core import payload
from holdfast.core.names import check_request_id
from holdfast.core.retry import Retry
from holdfast.core.task import NewTask
from holdfast.errors import BadArguments
from holdfast.observe.tracing import carrier_of_request
from holdfast.producer.options import Options, changed
from holdfast.wire.operator_shapes import ScheduleBody
from holdfast.wire.shapes import RetryBody, TaskBody

_USUAL: Final = Options()
#: The options that a body may have, under the names that the producer has for them.
_OPTIONS: Final = ("priority", "delay", "run_at", "headers", "timeout", "hard_timeout", "expires", "request_id")
_LONGEST_REQUEST_ID: Final = 200


def idempotency_key(call: Call) -> str | None:
    """By which a repeat of the request is known, if the client has given one."""
    key = call.request.headers.get("idempotency-key")
    return None if key is None else check_request_id(key)


def moved(task_id: str, partition: int) -> str:
    """The same task_id in this partition."""
    return f"{task_id[:12]}{partition:04x}{task_id[16:]}"


async def new_tasks(call: Call, bodies: Sequence[TaskBody], queue: str | None = None) -> list[NewTask]:
    """The tasks that these bodies describe, in the trace of the request; a repeat with its key finds the same ones."""
    gateway, key = call.gateway, idempotency_key(call)
    trace = carrier_of_request(call.request.headers)
    place = await gateway.placement()
    tasks, turns = [], Turns()
    for number, body in enumerate(bodies):
        options = _options(body, queue, _request_id(key, number, len(bodies)))
        task_id = body.task_id or gateway.ids.task_id(place(options.queue, options.request_id))
        arguments = arguments_of(body, gateway.settings.max_payload_bytes)
        tasks.append(options.new_task(task_id, body.type, arguments, trace))
        await turns.after(len(arguments))
    return tasks


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


def _options(body: TaskBody, queue: str | None, request_id: str | None) -> Options:
    given: dict[str, Any] = {name: value for name in _OPTIONS if (value := getattr(body, name)) is not UNSET}
    if body.retry is not UNSET:
        given["retry"] = retry_of(body.retry)
    if request_id is not None and body.task_id is UNSET:
        given.setdefault("request_id", request_id)
    chosen = queue or _or_none(body.queue)
    return changed(_USUAL, queue=chosen, **given)


def _request_id(key: str | None, number: int, count: int) -> str | None:
    if key is None:
        return None
    request_id = key if count == 1 else f"{key}:{number}"
    if len(request_id) > _LONGEST_REQUEST_ID:
        request_id = sha256(request_id.encode()).hexdigest()
    return check_request_id(request_id)


def _or_none(value: str | UnsetType) -> str | None:
    return None if value is UNSET else value
