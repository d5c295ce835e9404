"""`holdfast enqueue`."""

from __future__ import annotations

import asyncio
import difflib
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from holdfast.admin.inspect import first_line, json_value, last_failure, one_task, readable
from holdfast.admin.why import timed_out
from holdfast.cli import options, output
from holdfast.cli.options import app_option, duration_type, store_options, with_store
from holdfast.clock import SystemClock
from holdfast.core import payload
from holdfast.core.declared import DeclaredType
from holdfast.core.ids import IdSource
from holdfast.core.names import check_request_id
from holdfast.core.payload import MAX_BYTES
from holdfast.core.priority import check_priority
from holdfast.core.task import FINAL_STATES, Enqueued, State, Task
from holdfast.errors import BadArguments, RequestConflict, UnknownTaskType
from holdfast.producer.enqueue import Prepared, crypto_of
from holdfast.producer.options import Options, changed
from holdfast.security.crypto import PayloadCrypto
from holdfast.stores import documents
from holdfast.stores.contract import Store, WorkerRecord

#: Far more than any payload may have, far less than what hurts.
_READ_LIMIT = 64 * MAX_BYTES


def read_arguments(given: str) -> Any:
    """The JSON value given as text, as `@file`, or as `-` for stdin; `BadArguments` if it is none."""
    text = _read(given)
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise BadArguments("--args: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadArguments(f"--args is not JSON: {error}; write it as '{{\"name\": 1}}'") from None


def as_object(value: Any) -> dict[str, Any]:
    """The value, if it is a JSON object; `BadArguments` otherwise."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        raise BadArguments("--args: a list needs the names of the parameters; write an object, as '{\"name\": 1}'")
    raise BadArguments("--args is not a JSON object; write the arguments by name, as '{\"name\": 1}'")


def _read(given: str) -> bytes:
    if given == "-":
        data = sys.stdin.buffer.read(_READ_LIMIT + 1)
    elif given.startswith("@"):
        try:
            with Path(given[1:]).open("rb") as file:
                data = file.read(_READ_LIMIT + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadArguments(f"--args: cannot read {given[1:]}: {reason}") from None
    else:
        data = given.encode(errors="surrogateescape")
    if len(data) > _READ_LIMIT:
        raise BadArguments(f"--args: more than {_READ_LIMIT:,} bytes; keep large data elsewhere and pass a reference")
    return data


# -- from app ------------------------------------------------------------------------------------------------


def prepared_call(reference: str, type_name: str, arguments: Any, **options: Any) -> Prepared[Any]:
    """The call, checked against the function, with the options of its type and these."""
    app = _load(reference)
    if type_name not in app.task_types:
        known = ", ".join(sorted(app.task_types)) or "none"
        raise UnknownTaskType(f"{reference} has no task type {type_name}; it has {known}")
    using = app.task_types[type_name].using(**options)
    by_position = isinstance(arguments, list)
    prepared: Prepared[Any] = using.prepare(*arguments) if by_position else using.prepare(**as_object(arguments))
    return prepared


def crypto_of_app(reference: str | None) -> PayloadCrypto | None:
    """How the app signs and encrypts, if it does; without an app, by the keys of the environment."""
    crypto: PayloadCrypto | None = (
        crypto_of(None, None, payload.MAX_BYTES) if reference is None else _load(reference).crypto
    )
    return crypto


def url_of(ctx: click.Context, url: str, reference: str | None) -> str:
    """The URL of the command line, else the app's own if there is one, else what the environment says."""
    given = ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE
    return url if given or reference is None else str(_load(reference).url)


def _load(reference: str) -> Any:
    from holdfast.worker.loading import load_app

    return load_app(reference)


# -- from what workers publish -------------------------------------------------------------------------------


_DEFAULT_QUEUE = "default"
#: How many known types an error names.
_MAX_NAMED = 10
_ASK = "use --app module:app (or HOLDFAST_APP), or --force to enqueue it unchecked with the default policy"
#: What to do where there is no database, so that no worker can have published anything.
START_WORKER = f"start a worker, fix --url, {_ASK}"


async def published_call(
    store: Store, type_name: str, arguments: Any, crypto: PayloadCrypto | None, *, force: bool, **options: Any
) -> Prepared[Any]:
    """The call with the policy that workers have published for its type, checked against the signature of that.

    With `force`, a type that no worker has published is enqueued as given: for workers in other languages.
    """
    alive = [worker for worker in await store.workers() if worker.alive]
    knowing = [worker for worker in alive if type_name in worker.types]
    declared = await documents.declared_type(store, type_name) if knowing else None
    if declared is None:
        if not force:
            raise UnknownTaskType(f"{_unknown(type_name, alive, knowing)}: {_ASK}")
        served = sorted({name for worker in knowing for name in worker.queues})
        options["queue"] = options["queue"] or (served[0] if len(served) == 1 else _DEFAULT_QUEUE)
        given, options_of_type = as_object(arguments), Options(crypto=crypto)
    else:
        given, options_of_type = _published(declared, arguments, crypto, force=force)
    chosen = changed(options_of_type, **options)
    if not force:
        _refuse_unserved(type_name, chosen.queue, knowing)
    return Prepared(type_name, chosen, payload.encode(given, f"arguments of {type_name}"), msgspec.json.decode)


async def published_type(store: Store, type_name: str) -> DeclaredType | None:
    """What workers that are running have published of this type; None if there is nothing."""
    knowing = [worker for worker in await store.workers() if worker.alive and type_name in worker.types]
    return await documents.declared_type(store, type_name) if knowing else None


def _published(
    declared: DeclaredType, arguments: Any, crypto: PayloadCrypto | None, *, force: bool
) -> tuple[Any, Options]:
    options = Options(queue=declared.queue, priority=declared.priority, policy=declared.policy, crypto=crypto)
    if force:
        return as_object(arguments), options
    if declared.protected and crypto is None:
        raise UnknownTaskType(
            f"the app of {declared.name} signs or encrypts its arguments: use --app module:app, or set HOLDFAST_KEYS"
        )
    return declared.arguments(arguments if isinstance(arguments, list) else as_object(arguments)), options


def _refuse_unserved(type_name: str, queue: str, knowing: Sequence[WorkerRecord]) -> None:
    served = sorted({name for worker in knowing for name in worker.queues})
    if queue not in served:
        raise UnknownTaskType(
            f"no running worker that knows {type_name} serves queue {queue}; they serve {', '.join(served)}: "
            "use --queue, or --force to enqueue it anyway"
        )


def _unknown(type_name: str, alive: Sequence[WorkerRecord], knowing: Sequence[WorkerRecord]) -> str:
    if not alive:
        return f"no worker is running, so the policy and the arguments of {type_name} are unknown"
    if knowing:
        return f"the workers that know the type {type_name} have not published its policy"
    names = sorted({name for worker in alive for name in worker.types})
    close = difflib.get_close_matches(type_name, names, 1)
    shown = ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
    hint = f"did you mean {close[0]}?" if close else f"they know {shown or 'none'}"
    return f"no running worker knows the type {type_name} ({hint})"


# -- enqueue -------------------------------------------------------------------------------------------------


_POLL_SECONDS = 0.1


class EnqueueCall(msgspec.Struct, frozen=True, kw_only=True):
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
@click.option(
    "--args", "arguments", default="{}", metavar="JSON", help="Arguments as a JSON object, @file, or - for stdin."
)
@click.option("--queue", type=options.queue, help="Enqueue into this queue instead of the type's own.")
@click.option(
    "--delay",
    "delay_ms",
    type=duration_type("--delay"),
    metavar="DURATION",
    help="Run after this delay, such as 30s or 10m.",
)
@click.option(
    "--at", "run_at_ms", type=options.time, metavar="TIME", help="Run at this time, such as 2030-01-31T09:00:00Z."
)
@click.option("--priority", type=int, help="Priority from -100 to 100; higher runs sooner.")
@click.option("--request-id", help="Idempotency key: the same value in a queue returns the same task.")
@click.option(
    "--expires",
    "expires_ms",
    type=duration_type("--expires"),
    metavar="DURATION",
    help="Cancel the task if it has not started within this time.",
)
@app_option("Check the arguments against this app, and use its queue and policy.")
@click.option(
    "--wait", is_flag=True, help="Wait for the result and print it; exit with 1 if the task does not succeed."
)
@click.option(
    "--timeout", "timeout_ms", type=duration_type("--timeout"), metavar="DURATION", help="Stop waiting after this long."
)
@click.option(
    "--force",
    is_flag=True,
    help="Enqueue it unchecked, with the default policy if no worker has published one, as for workers in other "
    "languages.",
)
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
    """Enqueue a task."""
    call = _checked(asked, wait, timeout_ms)
    if call.force and not app_reference:
        as_object(call.arguments)  # before the store is opened, which creates it
    crypto = crypto_of_app(app_reference)
    known = prepared_call(app_reference, call.type, call.arguments, **call.options) if app_reference else None

    async def record(store: Store) -> tuple[Enqueued, Task | None]:
        prepared = known or await published_call(
            store, call.type, call.arguments, crypto, force=call.force, **call.options
        )
        answer = await _record(store, prepared)
        if wait and not as_json:
            output.chatter(f"task {answer.task_id}")
        return answer, await _ended(store, answer.task_id, timeout_ms) if wait else None

    exists = not (app_reference or call.force)
    answer, ended = with_store(url_of(ctx, url, app_reference), record, must_exist=exists, advice=START_WORKER)
    if crypto is not None and ended is not None and ended.result is not None:
        ended = msgspec.structs.replace(ended, result=crypto.opened_result(ended, ended.result))
    _print(answer, ended, as_json)
    ctx.exit(0 if ended is None or ended.state is State.SUCCEEDED else 1)


def _checked(asked: dict[str, Any], wait: bool, timeout_ms: int | None) -> EnqueueCall:
    if asked["delay_ms"] is not None and asked["run_at_ms"] is not None:
        raise click.UsageError("--delay and --at exclude each other")
    if timeout_ms is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    if asked["priority"] is not None:
        check_priority(asked["priority"])
    if asked["request_id"] is not None:
        check_request_id(asked["request_id"])
    return EnqueueCall(**{**asked, "arguments": read_arguments(asked["arguments"])})


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


async def _record(store: Store, call: Prepared[Any]) -> Enqueued:
    place, options = await store.placement(), call.options
    task_id = IdSource(SystemClock().now_ms, os.urandom).task_id(place(options.queue, options.request_id))
    (answer,) = await store.enqueue([options.new_task(task_id, call.type, call.payload)])
    if answer.conflict is not None:
        raise RequestConflict(f"request_id {options.request_id} already stands for {answer.task_id}: {answer.conflict}")
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
        raise await timed_out(store, task_id, timeout_ms or 0) from None


def _print(answer: Enqueued, ended: Task | None, as_json: bool) -> None:
    if as_json:
        end = {} if ended is None else _end(ended)
        output.document({"task_id": answer.task_id, "created": answer.created, **end})
    elif ended is None:
        output.line(answer.task_id)
        if not answer.created:
            output.chatter("This request_id was known: the task is the one recorded before.")
    elif ended.state is State.SUCCEEDED:
        output.line(readable(ended.result or b"null").decode(errors="backslashreplace"))
    else:
        output.chatter(f"holdfast: task {ended.task_id} is {ended.state}: {_cause(ended)}")


def _end(ended: Task) -> dict[str, object]:
    failure = last_failure(ended)
    error = None if failure is None else {"type": failure.type, "message": failure.message}
    return {"state": ended.state, "reason": ended.reason, "result": json_value(ended.result), "error": error}


def _cause(ended: Task) -> str:
    """Why it did not succeed, with the last error, and where the whole of it is to be seen."""
    reason, failure = ended.reason or "no reason given", last_failure(ended)
    if failure is None:
        return reason
    command = "dead" if ended.state is State.DEAD_LETTERED else "tasks"
    message = first_line(failure.message)
    error = f"{failure.name}: {message}" if message else failure.name
    return f"{reason}, after {error}; see holdfast {command} show {ended.task_id}"
