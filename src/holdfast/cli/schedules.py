"""`holdfast schedules`."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from msgspec.structs import asdict

from holdfast.admin import schedules as actions
from holdfast.admin.inspect import json_value
from holdfast.admin.views import schedule_view
from holdfast.cli import options as types
from holdfast.cli import output
from holdfast.cli.enqueue import (
    START_WORKER,
    as_object,
    crypto_of_app,
    prepared_call,
    published_call,
    read_arguments,
    url_of,
)
from holdfast.cli.listing import watched
from holdfast.cli.options import app_option, store_options, with_store
from holdfast.cli.tables import Column
from holdfast.clock import SystemClock
from holdfast.core import payload
from holdfast.core.declared import DeclaredType
from holdfast.core.durations import format_ms
from holdfast.core.ids import IdSource
from holdfast.core.names import check_schedule, suggestion
from holdfast.core.schedule.decide import changed_call, changed_timing
from holdfast.core.schedule.record import Missed, Overlap, Schedule, ScheduledCall, Timing
from holdfast.core.schedule.timing import CronLine, zone
from holdfast.errors import UnknownSchedule
from holdfast.producer.schedules import call_of, edited_call, protected_call
from holdfast.security.crypto import PayloadCrypto
from holdfast.stores import documents
from holdfast.stores.contract import Store

COLUMNS = (
    "name",
    Column("type", 1),
    Column("queue", 3),
    "when",
    Column("status", 2),
    "next occurrence",
    Column("last occurrence", 4),
    Column("source", 5, "long"),
)


def row(schedule: Schedule) -> list[object]:
    """One line of the list."""
    return [
        schedule.name,
        schedule.call.type,
        schedule.call.queue,
        when(schedule.timing),
        status(schedule),
        occurrence_time(schedule.next_at_ms, schedule.timing),
        occurrence_time(schedule.last_at_ms, schedule.timing),
        schedule.source,
    ]


def show_schedule(schedule: Schedule, upcoming: Sequence[datetime]) -> None:
    """Prints all that is known of a schedule, and its next occurrences."""
    output.details(_facts(schedule))
    output.block("next occurrences", "\n".join(wall_time(each) for each in upcoming))


def when(timing: Timing) -> str:
    """`0 3 * * * Europe/Berlin`, `every 10m`."""
    if timing.every_ms is not None:
        return f"every {format_ms(timing.every_ms)}"
    return f"{timing.cron} {timing.timezone}"


def status(schedule: Schedule) -> str:
    """Whether the schedule is paused or waits for its last task; empty if neither."""
    return "paused" if schedule.paused else "waiting for its last task" if schedule.waiting else ""


def occurrence_time(occurrence_ms: int | None, timing: Timing) -> str:
    """The time of an occurrence in the time zone of its schedule; empty for None."""
    if occurrence_ms is None:
        return ""
    return wall_time(datetime.fromtimestamp(occurrence_ms / 1000, UTC).astimezone(zone(timing.timezone)))


def wall_time(moment: datetime) -> str:
    """The time with its offset, or `Z` where the clock is that of UTC."""
    text = moment.isoformat()
    return text.replace("+00:00", "Z") if moment.tzinfo is UTC else text


def _facts(schedule: Schedule) -> list[tuple[str, object]]:
    timing, call = schedule.timing, schedule.call
    window = f" within {format_ms(timing.window_ms)}" if timing.missed is Missed.ALL else ""
    return [
        ("name", schedule.name),
        ("type", call.type),
        ("arguments", json.dumps(json_value(call.payload), ensure_ascii=False)),
        ("queue", call.queue),
        ("priority", call.priority),
        ("when", when(timing)),
        ("in words", CronLine(timing.cron).explained() if timing.cron else ""),
        ("jitter", format_ms(timing.jitter_ms) if timing.jitter_ms else ""),
        ("missed", f"{timing.missed}{window}"),
        ("overlap", timing.overlap),
        ("status", status(schedule)),
        ("last occurrence", occurrence_time(schedule.last_at_ms, timing)),
        ("last task", schedule.last_task_id),
        ("skipped", f"{occurrence_time(schedule.skipped_at_ms, timing)} {schedule.skipped_because}".strip()),
        ("declared in", schedule.source),
    ]


# -- schedules -----------------------------------------------------------------------------------------------


_Function = TypeVar("_Function", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")
#: The options that make up a timing, by the names that `changed_timing` has for them.
_TIMING = ("cron", "every", "timezone", "jitter", "missed", "window", "overlap")


def _timing_options(function: _Function) -> _Function:
    choices = (
        click.option(
            "--cron",
            metavar="LINE",
            help="Cron expression: five fields, six with seconds first, or a name such as @daily.",
        ),
        click.option(
            "--every", metavar="DURATION", help="Interval such as 30s, 10m or 1d, counted from 1970-01-01T00:00Z."
        ),
        click.option(
            "--timezone", metavar="ZONE", help="Time zone of the cron expression, such as Europe/Berlin.  [UTC]"
        ),
        click.option("--jitter", metavar="DURATION", help="Delay each task by a random part of this."),
        click.option(
            "--missed",
            type=click.Choice([each.value for each in Missed]),
            help="What to do with missed occurrences.  [once]",
        ),
        click.option("--window", metavar="DURATION", help="With --missed all: how far to look back.  [1h]"),
        click.option(
            "--overlap",
            type=click.Choice([each.value for each in Overlap]),
            help="What to do while the previous task is still active.  [allow]",
        ),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(choices), function)


def _call_options(function: _Function) -> _Function:
    choices = (
        click.option("--args", "arguments", metavar="JSON", help="Arguments as a JSON object, @file, or - for stdin."),
        click.option("--queue", type=types.queue, help="Enqueue its tasks into this queue instead of the type's own."),
        click.option("--priority", type=int, help="Priority from -100 to 100; higher runs sooner."),
        app_option("Check the arguments against this app, and use its options."),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(choices), function)


@click.group(no_args_is_help=False)
def schedules() -> None:
    """List, create, change, pause, resume and run schedules."""


@schedules.command("ls")
@watched
@store_options
def list_schedules(url: str, as_json: bool) -> None:
    """List schedules, the next to fire first."""
    found = with_store(url, actions.listed, must_exist=True, in_part=True)
    if as_json:
        output.document([schedule_view(each) for each in found])
    else:
        output.table(COLUMNS, [row(each) for each in found], "There is no schedule.")


@schedules.command("show")
@click.argument("name")
@store_options
def show(name: str, url: str, as_json: bool) -> None:
    """Show a schedule in detail."""

    async def look(store: Store) -> tuple[Schedule, list[Any]]:
        return await actions.one(store, name), await actions.upcoming(store, name)

    schedule, upcoming = _of_schedule(url, name, look)
    if as_json:
        output.document({**asdict(schedule_view(schedule)), "next": [wall_time(each) for each in upcoming]})
    else:
        show_schedule(schedule, upcoming)


@schedules.command("next")
@click.argument("name")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, actions.MAX_UPCOMING),
    metavar="N",
    default=5,
    show_default=True,
    help="Number of occurrences to show.",
)
@store_options
def show_next(name: str, count: int, url: str, as_json: bool) -> None:
    """Show the next occurrences of a schedule, in its time zone."""
    times = _of_schedule(url, name, lambda store: actions.upcoming(store, name, count))
    if as_json:
        output.document([wall_time(each) for each in times])
        return
    for each in times:
        output.line(wall_time(each))


@schedules.command("put")
@click.argument("name")
@click.option("--type", "type_name", required=True, type=types.task_type, help="Task type to enqueue.")
@_timing_options
@_call_options
@click.option(
    "--force",
    is_flag=True,
    help="Create it unchecked, with the default policy if no worker has published one, as for workers in other "
    "languages.",
)
@store_options
@click.pass_context
def put(ctx: click.Context, /, name: str, type_name: str, url: str, as_json: bool, **given: Any) -> None:
    """Create a schedule, or replace one that was created at run time."""
    timing = changed_timing(Timing(), **_timing(given))
    check_schedule(name)
    arguments = read_arguments("{}" if given["arguments"] is None else given["arguments"])
    app = given["app_reference"]
    crypto, known = crypto_of_app(app), None
    if given["force"] and not app:
        as_object(arguments)  # before the store is opened, which creates it
    if app:
        known = call_of(prepared_call(app, type_name, arguments, queue=given["queue"], priority=given["priority"]))

    async def make(store: Store) -> Schedule:
        call = known or await _published(store, type_name, arguments, crypto, given)
        return await actions.put(store, name, timing, protected_call(call, crypto, name, timing))

    exists = not (app or given["force"])
    _tell(with_store(url_of(ctx, url, app), make, must_exist=exists, advice=START_WORKER), as_json)


@schedules.command("edit")
@click.argument("name")
@_timing_options
@_call_options
@store_options
@click.pass_context
def edit(ctx: click.Context, /, name: str, url: str, as_json: bool, **given: Any) -> None:
    """Change the given parts of a schedule."""
    by_app = ctx.get_parameter_source("app_reference") is ParameterSource.COMMANDLINE
    if not by_app and all(value is None for option, value in given.items() if option != "app_reference"):
        raise click.UsageError("nothing to change: give at least one option")
    arguments = None if given["arguments"] is None else read_arguments(given["arguments"])
    app = given["app_reference"]
    crypto = crypto_of_app(app)
    # An app of the environment checks and signs, but does not replace the options that the schedule was given.
    by_app = by_app or (app is not None and arguments is not None)

    def change(schedule: Schedule, declared: DeclaredType | None) -> tuple[Timing, ScheduledCall]:
        timing, new = changed_timing(schedule.timing, **_timing(given)), None
        before = (
            schedule.call if crypto is None or (app is None and arguments is None) else crypto.opened_call(schedule)
        )
        if by_app:
            known = json_value(before.payload) if arguments is None else arguments
            new = call_of(prepared_call(app, before.type, known, queue=given["queue"], priority=given["priority"]))
        elif arguments is not None:
            checked = as_object(arguments) if declared is None else declared.arguments(as_object(arguments))
            new = changed_call(before, payload=payload.encode(checked, f"arguments of {before.type}"))
        return timing, edited_call(schedule, new, timing, crypto, queue=given["queue"], priority=given["priority"])

    async def make(store: Store) -> Schedule:
        type_name = (await actions.one(store, name)).call.type
        declared = None if arguments is None or by_app else await documents.declared_type(store, type_name)
        return await actions.edit(store, name, lambda schedule: change(schedule, declared))

    _tell(_of_schedule(url_of(ctx, url, app), name, make), as_json)


@schedules.command("pause")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@store_options
def pause(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Pause schedules; running tasks continue."""
    _each(names, url, as_json, actions.pause, "is paused")


@schedules.command("resume")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@store_options
def resume(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Resume paused schedules from now on."""
    _each(names, url, as_json, actions.resume, "is running")


@schedules.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@store_options
def remove(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Delete schedules; tasks that they enqueued stay."""
    for schedule in _each(names, url, as_json, actions.remove, "is removed"):
        if schedule.source:
            output.chatter(
                f"{schedule.name} is declared in {schedule.source}: it comes back when a worker of it starts."
            )


@schedules.command("run")
@click.argument("name")
@app_option("Sign with the keys of this app.")
@store_options
@click.pass_context
def run(ctx: click.Context, /, name: str, app_reference: str | None, url: str, as_json: bool) -> None:
    """Enqueue a task of a schedule now, in addition to its occurrences."""
    new_id = functools.cache(IdSource(SystemClock().now_ms, os.urandom).task_id)
    crypto = crypto_of_app(app_reference)
    task_id = _of_schedule(
        url_of(ctx, url, app_reference), name, lambda store: actions.run_now(store, name, new_id, crypto=crypto)
    )
    if as_json:
        output.document({"name": name, "task_id": task_id})
    else:
        output.line(task_id)


def _of_schedule(url: str, name: str, action: Callable[[Store], Awaitable[_Answer]]) -> _Answer:
    return with_store(url, lambda store: _named(store, name, action(store)), must_exist=True)


async def _named(store: Store, name: str, answer: Awaitable[_Answer]) -> _Answer:
    """The answer about this schedule; if there is none of this name, the error says which one may be meant."""
    try:
        return await answer
    except UnknownSchedule as error:
        hint = suggestion(name, [each.name for each in await actions.listed(store)])
        raise UnknownSchedule(f"{error}: {hint or 'holdfast schedules ls lists them'}") from None


def _timing(given: dict[str, Any]) -> dict[str, Any]:
    return {option: given[option] for option in _TIMING}


async def _published(
    store: Store, type_name: str, arguments: Any, crypto: PayloadCrypto | None, given: dict[str, Any]
) -> ScheduledCall:
    """The call with the policy that workers have published; it is signed together with the timing, later on."""
    options = {"queue": given["queue"], "priority": given["priority"]}
    return call_of(await published_call(store, type_name, arguments, crypto, force=given["force"], **options))


def _each(
    names: tuple[str, ...], url: str, as_json: bool, action: Callable[[Store, str], Awaitable[Schedule]], now: str
) -> list[Schedule]:
    async def act(store: Store) -> list[Schedule]:
        return [await _named(store, name, action(store, name)) for name in names]

    changed = with_store(url, act, must_exist=True)
    if as_json:
        output.document([schedule_view(each) for each in changed])
    else:
        for each in changed:
            output.line(f"schedule {each.name} {now}")
    return changed


def _tell(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        output.document(schedule_view(schedule))
    else:
        occurrence = occurrence_time(schedule.next_at_ms, schedule.timing) or status(schedule) or "never"
        output.line(f"schedule {schedule.name}: next occurrence {occurrence}")
