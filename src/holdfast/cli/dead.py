"""`holdfast dead`."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click
from click.core import ParameterSource
from msgspec.structs import replace

from holdfast.admin import actions, inspect
from holdfast.admin.copies import CheckArguments, replay_changed
from holdfast.admin.inspect import about_ms, first_line, several
from holdfast.admin.search import Filter, Found, argument, search, whole_id
from holdfast.admin.views import task_view
from holdfast.cli import options, output
from holdfast.cli.bulk import Bulk, Words, bulk_options, by_error, change_all, change_named, copy_named, report
from holdfast.cli.enqueue import crypto_of_app, prepared_call, published_type, url_of
from holdfast.cli.listing import end_of_page, page_facts, say_unknown_names, search_options, watched
from holdfast.cli.options import app_option, store_options, with_store
from holdfast.cli.tables import Column
from holdfast.cli.tasks import show_task
from holdfast.clock import SystemClock
from holdfast.core import lifecycle, payload
from holdfast.core.ids import IdSource
from holdfast.core.task import State, Task, short_error
from holdfast.errors import BadOption, Refused
from holdfast.stores.contract import Query, Store

_COLUMNS = (
    Column("task_id", kind="id"),
    "type",
    Column("queue", 2),
    Column("attempts", 4, "number"),
    Column("reason", 3),
    Column("died", 1),
    Column("error", kind="long"),
)
_GROUPS = (
    "#count",
    "type",
    "error",
    Column("newest", 1),
    Column("newest task_id", 2, "id"),
    Column("newest message", 3, "long"),
)


@click.group(no_args_is_help=False)
def dead() -> None:
    """List, show, replay and discard dead letters."""


def _change(text: str) -> tuple[str, Any]:
    """Reads `args.NAME=VALUE`."""
    key, value = argument(text)
    if not key.startswith("args.") or key == "args.":
        raise BadOption(f"--set {text[:60]!r}: write args.NAME=VALUE, such as args.width=200")
    return key.removeprefix("args."), value


@dead.command("ls")
@search_options("died", "finished")
@click.option("--by-error", is_flag=True, help="Group by task type and error class.")
@watched
@store_options
def list_dead(by_error: bool, query: Query, given: Filter, url: str, as_json: bool) -> None:
    """List dead letters, the task that was enqueued last first.

    --since, --until and --arg compare up to 50,000 dead letters; a search that ends there says so, and prints the
    cursor.
    """
    query = replace(query, states=frozenset({State.DEAD_LETTERED}))
    if by_error:
        if not given.is_empty:
            raise click.UsageError("--by-error does not go with --since, --until and --arg")
        _list_groups(url, query, as_json)
        return
    found, tasks = with_store(url, lambda store: _page(store, query, given), must_exist=True, in_part=True)
    if as_json:
        output.document({"tasks": [task_view(task, history=True) for task in tasks], **page_facts(found)})
        return
    now_ms = SystemClock().now_ms()
    output.table(_COLUMNS, [_row(task, now_ms) for task in tasks], "No dead letter matches.")
    end_of_page(found)


@dead.command("show")
@click.argument("task_id", type=options.task_id)
@store_options
def show(task_id: str, url: str, as_json: bool) -> None:
    """Show a dead letter in detail."""

    async def look(store: Store) -> Task:
        return await inspect.one_task(store, await whole_id(store, task_id))

    task = with_store(url, look, must_exist=True)
    if task.state is not State.DEAD_LETTERED:
        raise Refused(f"task {task.task_id} is {task.state}, not a dead letter; see holdfast tasks show")
    if as_json:
        output.document(task_view(task, history=True))
    else:
        show_task(task)


@dead.command("replay")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@click.option(
    "--set",
    "changes",
    type=_change,
    multiple=True,
    metavar="args.NAME=VALUE",
    help="Change this argument; the value is JSON, or text. Repeatable.",
)
@app_option("With --set: check the arguments against this app, and sign and encrypt with its keys.")
@bulk_options(by_error)
@store_options
@click.pass_context
def replay(
    ctx: click.Context,
    task_ids: tuple[str, ...],
    changes: tuple[tuple[str, Any], ...],
    app_reference: str | None,
    bulk: Bulk,
    url: str,
    as_json: bool,
) -> None:
    """Put dead letters back with fresh attempts.

    With --set, each runs as a new task with the changed arguments, and the dead letter is discarded with a record of
    it. The arguments are checked against --app, else against the signature that running workers publish. Signed and
    encrypted tasks need the keys of their app: --app, or HOLDFAST_KEYS.
    """
    bulk.check(task_ids)
    if changes:
        ctx.exit(_replay_changed(url_of(ctx, url, app_reference), task_ids, dict(changes), app_reference, as_json))
    if app_reference and ctx.get_parameter_source("app_reference") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--app goes with --set")
    if bulk.all:
        change_all(url, bulk, _chosen(bulk), lifecycle.replay, Words("replay", "replayed", "dead letter"), as_json)
        return
    found, verdicts = change_named(url, task_ids, actions.replay, dead=True)
    ctx.exit(report(found, verdicts, "replayed", as_json, lambda _: "is ready again"))


@dead.command("discard")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@click.option("--reason", required=True, help="Reason to store in the record.")
@bulk_options(by_error)
@store_options
@click.pass_context
def discard(ctx: click.Context, task_ids: tuple[str, ...], reason: str, bulk: Bulk, url: str, as_json: bool) -> None:
    """Delete dead letters and keep a record with payload and reason."""
    bulk.check(task_ids)
    reason = actions.check_reason(reason)
    if bulk.all:
        make_change = partial(lifecycle.discard, reason=reason)
        change_all(url, bulk, _chosen(bulk), make_change, Words("discard", "discarded", "dead letter"), as_json)
        return
    found, verdicts = change_named(url, task_ids, lambda store, ids: actions.discard(store, ids, reason), dead=True)
    ctx.exit(report(found, verdicts, "discarded", as_json, lambda _: "is discarded"))


def _replay_changed(
    url: str, task_ids: tuple[str, ...], changes: dict[str, Any], app_reference: str | None, as_json: bool
) -> int:
    if not task_ids:
        raise click.UsageError("--set goes with task_ids, not with --all")
    crypto = crypto_of_app(app_reference)
    new_id = IdSource(SystemClock().now_ms, os.urandom).task_id

    def by_app(task_type: str, arguments: dict[str, Any]) -> bytes:
        return prepared_call(app_reference or "", task_type, arguments).payload

    async def copied(store: Store, task_id: str) -> str:
        check = by_app if app_reference else await _published_check(store, task_id)
        return await replay_changed(store, task_id, changes, new_id, crypto=crypto, check=check)

    return copy_named(url, task_ids, copied, "is replayed as", as_json, dead=True)


async def _published_check(store: Store, task_id: str) -> CheckArguments | None:
    """Checks arguments as `holdfast enqueue` does, by what workers publish of the type; None where that is nothing."""
    declared = await published_type(store, (await inspect.one_task(store, task_id)).type)
    if declared is None or declared.parameters is None or any(each.name[0] == "*" for each in declared.parameters):
        return None
    return lambda task_type, arguments: payload.encode(declared.arguments(arguments), f"arguments of {task_type}")


def _chosen(bulk: Bulk) -> Query:
    return actions.dead_letters(bulk.queue, bulk.task_type, bulk.error_type)


async def _page(store: Store, query: Query, given: Filter) -> tuple[Found, list[Task]]:
    found = await search(store, query, given)
    if not found.tasks:
        await say_unknown_names(store, query)
    return found, (await inspect.with_history(store, found.page)).tasks


def _list_groups(url: str, query: Query, as_json: bool) -> None:
    found = with_store(url, lambda store: inspect.dead_letters_by_error(store, query), must_exist=True, in_part=True)
    if as_json:
        output.document(found)
        return
    now_ms = SystemClock().now_ms()
    rows = [
        [
            group.count,
            group.type,
            short_error(group.error_type),
            "" if group.newest_at_ms is None else f"{about_ms(now_ms - group.newest_at_ms)} ago",
            group.newest_task_id,
            first_line(group.message),
        ]
        for group in found.groups
    ]
    output.table(_GROUPS, rows, "No dead letters.")
    if not found.complete:
        output.chatter(f"Only the newest {several(found.looked_at, 'dead letter')} were looked at.")


def _row(task: Task, now_ms: int) -> list[object]:
    failure = inspect.last_failure(task)
    return [
        task.task_id,
        task.type,
        task.queue,
        task.attempt,
        task.reason,
        "" if task.finished_at_ms is None else f"{about_ms(now_ms - task.finished_at_ms)} ago",
        f"{failure.name}: {first_line(failure.message)}" if failure else "",
    ]
