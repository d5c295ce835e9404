"""`holdfast dead`."""

from __future__ import annotations

from functools import partial

import click

from holdfast.admin import actions, inspect
from holdfast.admin.text import about_ms, first_line, several
from holdfast.cli import options, output
from holdfast.cli.bulk import Bulk, Words, bulk_options, by_error, change_all
from holdfast.cli.options import store_options, with_store
from holdfast.cli.task_page import show_task
from holdfast.cli.verdicts import report
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.task import State, Task
from holdfast.errors import Refused
from holdfast.stores.contract import MAX_BATCH, Page, Query, Store


@click.group(no_args_is_help=False)
def dead() -> None:
    """List, show, replay and discard dead letters."""


@dead.command("ls")
@click.option("--queue", type=options.queue, help="Only of this queue.")
@click.option("--type", "task_type", type=options.task_type, help="Only of this type.")
@click.option("--error", "error_type", help="Only with this class of error, such as ValueError.")
@click.option("--by-error", is_flag=True, help="Group by task type and class of error.")
@click.option("--limit", type=click.IntRange(1, MAX_BATCH), default=50, show_default=True, help="On a page.")
@click.option("--cursor", help="Where the last page ended.")
@store_options
def list_dead(
    queue: str | None,
    task_type: str | None,
    error_type: str | None,
    by_error: bool,
    limit: int,
    cursor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """List dead letters, newest first."""
    found = actions.dead_letters(queue, task_type, error_type)
    if by_error:
        _list_groups(url, found, as_json)
        return
    query = Query(
        states=found.states, queue=queue, type=task_type, error_type=found.error_type, limit=limit, cursor=cursor
    )
    page = with_store(url, lambda store: _page(store, query), must_exist=True)
    if as_json:
        output.document({"tasks": [inspect.task_view(task) for task in page.tasks], "cursor": page.cursor})
        return
    now_ms = SystemClock().now_ms()
    columns = ["task_id", "type", "queue", "#attempts", "reason", "died", "error"]
    output.table(columns, [_row(task, now_ms) for task in page.tasks], "No dead letters.")
    if page.cursor:
        output.chatter(f"There are more: --cursor {page.cursor}")


@dead.command("show")
@click.argument("task_id", type=options.task_id)
@store_options
def show(task_id: str, url: str, as_json: bool) -> None:
    """Show all that is known of a dead letter."""
    task = with_store(url, lambda store: inspect.one_task(store, task_id), must_exist=True)
    if task.state is not State.DEAD_LETTERED:
        raise Refused(f"task {task_id} is {task.state}, not a dead letter; see holdfast tasks show")
    if as_json:
        output.document(inspect.task_view(task))
    else:
        show_task(task)


@dead.command("replay")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@bulk_options(by_error)
@store_options
@click.pass_context
def replay(ctx: click.Context, task_ids: tuple[str, ...], bulk: Bulk, url: str, as_json: bool) -> None:
    """Put dead letters back with fresh attempts."""
    bulk.check(task_ids)
    if bulk.all:
        change_all(url, bulk, _chosen(bulk), lifecycle.replay, Words("replay", "replayed", "dead letter"), as_json)
        return
    verdicts = with_store(url, lambda store: actions.replay(store, task_ids), must_exist=True)
    ctx.exit(report(task_ids, verdicts, "replayed", as_json, lambda _: "is ready again"))


@dead.command("discard")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@click.option("--reason", required=True, help="Recorded with the payload.")
@bulk_options(by_error)
@store_options
@click.pass_context
def discard(ctx: click.Context, task_ids: tuple[str, ...], reason: str, bulk: Bulk, url: str, as_json: bool) -> None:
    """Delete dead letters; a record with payload and reason is kept."""
    bulk.check(task_ids)
    reason = actions.check_reason(reason)
    if bulk.all:
        make_change = partial(lifecycle.discard, reason=reason)
        change_all(url, bulk, _chosen(bulk), make_change, Words("discard", "discarded", "dead letter"), as_json)
        return
    verdicts = with_store(url, lambda store: actions.discard(store, task_ids, reason), must_exist=True)
    ctx.exit(report(task_ids, verdicts, "discarded", as_json, lambda _: "is discarded"))


def _chosen(bulk: Bulk) -> Query:
    return actions.dead_letters(bulk.queue, bulk.task_type, bulk.error_type)


async def _page(store: Store, query: Query) -> Page:
    return await inspect.with_history(store, await inspect.tasks_page(store, query))


def _list_groups(url: str, query: Query, as_json: bool) -> None:
    found = with_store(url, lambda store: inspect.dead_letters_by_error(store, query), must_exist=True)
    if as_json:
        output.document(found)
        return
    now_ms = SystemClock().now_ms()
    rows = [
        [
            group.count,
            group.type,
            group.error_type,
            "" if group.newest_at_ms is None else f"{about_ms(now_ms - group.newest_at_ms)} ago",
            group.newest_task_id,
            first_line(group.message),
        ]
        for group in found.groups
    ]
    output.table(["#count", "type", "error", "newest", "newest task_id", "newest message"], rows, "No dead letters.")
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
        f"{failure.type}: {first_line(failure.message)}" if failure else "",
    ]
