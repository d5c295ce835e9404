"""`holdfast schedules`."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from holdfast.admin import schedules as actions
from holdfast.admin.inspect import json_value
from holdfast.cli import options as types
from holdfast.cli import output
from holdfast.cli.arguments import as_object, read_arguments
from holdfast.cli.from_app import prepared_call, url_of
from holdfast.cli.known_types import queue_for
from holdfast.cli.options import store_options, with_store
from holdfast.cli.schedule_page import COLUMNS, row, schedule_view, show_schedule, status, tick_time, wall_time
from holdfast.clock import SystemClock
from holdfast.core import payload
from holdfast.core.definition import changed_call, changed_timing
from holdfast.core.ids import IdSource
from holdfast.core.schedule import Call, Missed, Overlap, Schedule, Timing
from holdfast.producer.schedules import call_of
from holdfast.stores.contract import Store

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: The options that make up a timing, by the names that `changed_timing` has for them.
_TIMING = ("cron", "every", "timezone", "jitter", "missed", "window", "overlap")


def _timing_options(function: _Function) -> _Function:
    choices = (
        click.option("--cron", metavar="LINE", help="Five fields, or six with seconds first, or @daily."),
        click.option("--every", metavar="DURATION", help="30s, 10m, 1d… counted from 1970-01-01T00:00Z."),
        click.option("--timezone", metavar="ZONE", help="Of the cron line, as Europe/Berlin.  [UTC]"),
        click.option("--jitter", metavar="DURATION", help="Delay each task by a part of this."),
        click.option(
            "--missed", type=click.Choice([each.value for each in Missed]), help="What becomes of missed ticks.  [once]"
        ),
        click.option("--window", metavar="DURATION", help="How far back --missed all goes.  [1h]"),
        click.option(
            "--overlap",
            type=click.Choice([each.value for each in Overlap]),
            help="While the last task is active.  [allow]",
        ),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(choices), function)


def _call_options(function: _Function) -> _Function:
    choices = (
        click.option("--args", "arguments", metavar="JSON", help="An object, @file, or - for stdin."),
        click.option("--queue", type=types.queue, help="Where its tasks wait, if not where the type says."),
        click.option("--priority", type=int, help="From -100 to 100, higher is sooner."),
        click.option("--app", "app_reference", metavar="MODULE:APP", help="Check against this app, use its options."),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(choices), function)


@click.group(no_args_is_help=False)
def schedules() -> None:
    """List, make, change, pause, resume and run schedules."""


@schedules.command("ls")
@store_options
def list_schedules(url: str, as_json: bool) -> None:
    """List schedules, the soonest to tick first."""
    found = with_store(url, actions.listed, must_exist=True)
    if as_json:
        output.document([schedule_view(each) for each in found])
    else:
        output.table(COLUMNS, [row(each) for each in found], "There is no schedule.")


@schedules.command("show")
@click.argument("name")
@store_options
def show(name: str, url: str, as_json: bool) -> None:
    """Show all that is known of a schedule."""

    async def look(store: Store) -> tuple[Schedule, list[Any]]:
        return await actions.one(store, name), await actions.upcoming(store, name)

    schedule, upcoming = with_store(url, look, must_exist=True)
    if as_json:
        output.document({**schedule_view(schedule), "next": [wall_time(each) for each in upcoming]})
    else:
        show_schedule(schedule, upcoming)


@schedules.command("next")
@click.argument("name")
@click.option(
    "-n", "--count", type=click.IntRange(1, actions.MAX_UPCOMING), default=5, show_default=True, help="Ticks."
)
@store_options
def show_next(name: str, count: int, url: str, as_json: bool) -> None:
    """Show the next ticks of a schedule, in its time zone."""
    times = with_store(url, lambda store: actions.upcoming(store, name, count), must_exist=True)
    if as_json:
        output.document([wall_time(each) for each in times])
        return
    for each in times:
        output.line(wall_time(each))


@schedules.command("put")
@click.argument("name")
@click.option("--type", "type_name", required=True, type=types.task_type, help="The task type that it calls.")
@_timing_options
@_call_options
@click.option("--force", is_flag=True, help="Make it although no running worker knows the type.")
@store_options
@click.pass_context
def put(ctx: click.Context, /, name: str, type_name: str, url: str, as_json: bool, **given: Any) -> None:
    """Make a schedule, or give one that was made at run time this definition."""
    timing = changed_timing(Timing(), **_timing(given))
    arguments = read_arguments("{}" if given["arguments"] is None else given["arguments"])
    app = given["app_reference"]
    call = _from_app(app, type_name, arguments, given) if app else None

    async def make(store: Store) -> Schedule:
        return await actions.put(store, name, timing, call or await _unchecked(store, type_name, arguments, given))

    _tell(with_store(url_of(ctx, url, app), make), as_json)


@schedules.command("edit")
@click.argument("name")
@_timing_options
@_call_options
@store_options
@click.pass_context
def edit(ctx: click.Context, /, name: str, url: str, as_json: bool, **given: Any) -> None:
    """Change what is given of a schedule, and nothing else."""
    if all(value is None for value in given.values()):
        raise click.UsageError("nothing to change: give at least one option")
    arguments = None if given["arguments"] is None else read_arguments(given["arguments"])
    app = given["app_reference"]

    def change(schedule: Schedule) -> tuple[Timing, Call]:
        timing = changed_timing(schedule.timing, **_timing(given))
        if app:
            known = json_value(schedule.call.payload) if arguments is None else arguments
            return timing, _from_app(app, schedule.call.type, known, given)
        new = None if arguments is None else payload.encode(as_object(arguments), f"arguments of {schedule.call.type}")
        return timing, changed_call(schedule.call, queue=given["queue"], priority=given["priority"], payload=new)

    _tell(with_store(url_of(ctx, url, app), lambda store: actions.edit(store, name, change)), as_json)


@schedules.command("pause")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@store_options
def pause(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Let these schedules have no ticks until they are resumed; what runs goes on."""
    _each(names, url, as_json, actions.pause, "is paused")


@schedules.command("resume")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@store_options
def resume(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Let these schedules tick again, from now on."""
    _each(names, url, as_json, actions.resume, "is running")


@schedules.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@store_options
def remove(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Delete these schedules; the tasks that they made stay."""
    for schedule in _each(names, url, as_json, actions.remove, "is removed"):
        if schedule.source:
            output.chatter(
                f"{schedule.name} is declared in {schedule.source}: it comes back when a worker of it starts."
            )


@schedules.command("run")
@click.argument("name")
@store_options
def run(name: str, url: str, as_json: bool) -> None:
    """Make a task of a schedule now, besides its ticks."""
    new_id = functools.cache(IdSource(SystemClock().now_ms, os.urandom).task_id)
    task_id = with_store(url, lambda store: actions.run_now(store, name, new_id), must_exist=True)
    if as_json:
        output.document({"name": name, "task_id": task_id})
    else:
        output.line(task_id)


def _timing(given: dict[str, Any]) -> dict[str, Any]:
    return {option: given[option] for option in _TIMING}


def _from_app(reference: str, type_name: str, arguments: Any, given: dict[str, Any]) -> Call:
    return call_of(prepared_call(reference, type_name, arguments, queue=given["queue"], priority=given["priority"]))


async def _unchecked(store: Store, type_name: str, arguments: Any, given: dict[str, Any]) -> Call:
    """The call as far as it can be known without the app's code."""
    queue = queue_for(type_name, given["queue"], await store.workers(), force=given["force"])
    encoded = payload.encode(as_object(arguments), f"arguments of {type_name}")
    return changed_call(Call(type=type_name), queue=queue, priority=given["priority"], payload=encoded)


def _each(
    names: tuple[str, ...], url: str, as_json: bool, action: Callable[[Store, str], Awaitable[Schedule]], now: str
) -> list[Schedule]:
    async def act(store: Store) -> list[Schedule]:
        return [await action(store, name) for name in names]

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
        tick = tick_time(schedule.next_at_ms, schedule.timing) or status(schedule) or "never"
        output.line(f"schedule {schedule.name}: next tick {tick}")
