"""`holdfast enqueue`."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from holdfast.admin.inspect import json_value, one_task
from holdfast.cli import options, output
from holdfast.cli.arguments import as_object, read_arguments
from holdfast.cli.from_app import prepared_call, url_of
from holdfast.cli.known_types import queue_for
from holdfast.cli.options import duration_type, store_options, with_store
from holdfast.clock import SystemClock
from holdfast.core import payload
from holdfast.core.durations import format_ms
from holdfast.core.ids import IdSource
from holdfast.core.names import check_request_id
from holdfast.core.priority import check_priority
from holdfast.core.task import FINAL_STATES, Enqueued, NewTask, State, Task
from holdfast.errors import RequestConflict, ResultTimeout
from holdfast.producer.options import Options, changed
from holdfast.stores.contract import Store

_POLL_SECONDS = 0.1


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for."""

    type: str
    arguments: Any
    queue: str | None
    delay_ms: int | None
    run_at_ms: int | None
    priority: int | None
    request_id: str | None
    expires_ms: int | None
    force: bool

    @property
    def options(self) -> dict[str, Any]:
        """What `using` would be told; None where nothing was said."""
        return {
            "queue": self.queue,
            "delay": _duration(self.delay_ms),
            "run_at": None if self.run_at_ms is None else datetime.fromtimestamp(self.run_at_ms / 1000, UTC),
            "priority": self.priority,
            "request_id": self.request_id,
            "expires": _duration(self.expires_ms),
        }


@click.command()
@click.argument("type", metavar="TYPE", type=options.task_type)
@click.option("--args", "arguments", default="{}", metavar="JSON", help="An object, @file, or - for stdin.")
@click.option("--queue", type=options.queue, help="Where to wait, if not where the type says.")
@click.option("--delay", "delay_ms", type=duration_type("--delay"), metavar="DURATION", help="Run after 30s, 10m…")
@click.option("--at", "run_at_ms", type=options.time, metavar="TIME", help="Run at this time, as 2030-01-31T09:00:00Z.")
@click.option("--priority", type=int, help="From -100 to 100, higher is sooner.")
@click.option("--request-id", help="The same request_id in a queue gives the same task.")
@click.option(
    "--expires",
    "expires_ms",
    type=duration_type("--expires"),
    metavar="DURATION",
    help="Cancel it if not begun by then.",
)
@click.option("--app", "app_reference", metavar="MODULE:APP", help="Check against this app, use its queue and policy.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result; exit 1 if it is not a success.")
@click.option("--timeout", "timeout_ms", type=duration_type("--timeout"), metavar="DURATION", help="Of --wait.")
@click.option("--force", is_flag=True, help="Record it although no running worker knows the type.")
@store_options
@click.pass_context
def enqueue(
    ctx: click.Context,
    /,
    app_reference: str | None,
    wait: bool,
    timeout_ms: int | None,
    url: str,
    as_json: bool,
    **asked: Any,
) -> None:
    """Record a task."""
    call = _checked(asked, wait, timeout_ms)
    task = _from_app(app_reference, call) if app_reference else None

    async def record(store: Store) -> tuple[Enqueued, Task | None]:
        answer = await _record(store, task or await _unchecked(store, call))
        if wait and not as_json:
            output.chatter(f"task {answer.task_id}")
        return answer, await _ended(store, answer.task_id, timeout_ms) if wait else None

    answer, ended = with_store(url_of(ctx, url, app_reference), record)
    _print(answer, ended, as_json)
    ctx.exit(0 if ended is None or ended.state is State.SUCCEEDED else 1)


def _checked(asked: dict[str, Any], wait: bool, timeout_ms: int | None) -> Call:
    if asked["delay_ms"] is not None and asked["run_at_ms"] is not None:
        raise click.UsageError("--delay and --at exclude each other")
    if timeout_ms is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    if asked["priority"] is not None:
        check_priority(asked["priority"])
    if asked["request_id"] is not None:
        check_request_id(asked["request_id"])
    return Call(**{**asked, "arguments": read_arguments(asked["arguments"])})


def _from_app(reference: str, call: Call) -> NewTask:
    """The task as the app's own function would record it."""
    prepared = prepared_call(reference, call.type, call.arguments, **call.options)
    return prepared.options.new_task(_new_id(), prepared.type, prepared.payload)


async def _unchecked(store: Store, call: Call) -> NewTask:
    """The task as far as it can be known without the app's code."""
    arguments = as_object(call.arguments)
    queue = queue_for(call.type, call.queue, await store.workers(), force=call.force)
    given = changed(Options(), **{**call.options, "queue": queue})
    return given.new_task(_new_id(), call.type, payload.encode(arguments, f"arguments of {call.type}"))


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


async def _record(store: Store, task: NewTask) -> Enqueued:
    place = await store.placement()
    task = msgspec.structs.replace(task, task_id=_new_id(place(task.queue, task.request_id)))
    (answer,) = await store.enqueue([task])
    if answer.conflict is not None:
        raise RequestConflict(f"request_id {task.request_id} already stands for {answer.task_id}: {answer.conflict}")
    return answer


async def _ended(store: Store, task_id: str, timeout_ms: int | None) -> Task:
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            task = await one_task(store, task_id)
            while task.state not in FINAL_STATES:
                await asyncio.sleep(_POLL_SECONDS)
                task = await one_task(store, task_id)
            return task
    except TimeoutError:
        waited = format_ms(timeout_ms or 0)
        raise ResultTimeout(f"task {task_id} has not ended within {waited}; it goes on") from None


def _print(answer: Enqueued, ended: Task | None, as_json: bool) -> None:
    if as_json:
        end = (
            {} if ended is None else {"state": ended.state, "reason": ended.reason, "result": json_value(ended.result)}
        )
        output.document({"task_id": answer.task_id, "created": answer.created, **end})
    elif ended is None:
        output.line(answer.task_id)
        if not answer.created:
            output.chatter("This request_id was known: the task is the one recorded before.")
    elif ended.state is State.SUCCEEDED:
        output.line((ended.result or b"null").decode(errors="backslashreplace"))
    else:
        output.chatter(f"holdfast: task {ended.task_id} is {ended.state}: {ended.reason or 'no reason given'}")


def _new_id(partition: int = 0) -> str:
    return IdSource(SystemClock().now_ms, os.urandom).task_id(partition)
