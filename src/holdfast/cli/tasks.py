"""`holdfast tasks`."""

from __future__ import annotations

from functools import partial

import click

from holdfast.admin import actions, inspect
from holdfast.admin.text import about_ms
from holdfast.admin.why import why
from holdfast.cli import options, output
from holdfast.cli.bulk import Bulk, Words, bulk_options, by_state, change_all
from holdfast.cli.options import store_options, with_store
from holdfast.cli.task_page import show_log, show_task
from holdfast.cli.verdicts import report
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.lifecycle import Verdict
from holdfast.core.priority import check_priority
from holdfast.core.progress import kept_log
from holdfast.core.task import FINAL_STATES, WAITING_STATES, State, Task
from holdfast.stores.contract import MAX_BATCH, Query

_UNFINISHED = frozenset(State) - FINAL_STATES


@click.group(no_args_is_help=False)
def tasks() -> None:
    """List, show, explain, prioritize and cancel tasks."""


@tasks.command("ls")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="Only tasks in this state; may be given several times.",
)
@click.option("--queue", type=options.queue, help="Only tasks of this queue.")
@click.option("--type", "task_type", type=options.task_type, help="Only tasks of this type.")
@click.option("--limit", type=click.IntRange(1, MAX_BATCH), default=50, show_default=True, help="Tasks on a page.")
@click.option("--cursor", help="Where the last page ended.")
@store_options
def list_tasks(
    states: tuple[str, ...],
    queue: str | None,
    task_type: str | None,
    limit: int,
    cursor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """List tasks, newest first."""
    chosen = frozenset(State(state) for state in states) or None
    query = Query(states=chosen, queue=queue, type=task_type, limit=limit, cursor=cursor)
    page = with_store(url, lambda store: inspect.tasks_page(store, query), must_exist=True)
    if as_json:
        output.document({"tasks": [inspect.task_view(task) for task in page.tasks], "cursor": page.cursor})
        return
    now_ms = SystemClock().now_ms()
    columns = ["task_id", "type", "queue", "state", "#priority", "attempts", "created", "note"]
    output.table(columns, [_row(task, now_ms) for task in page.tasks], "No task matches.")
    if page.cursor:
        output.chatter(f"There are more: --cursor {page.cursor}")


@tasks.command("show")
@click.argument("task_id", type=options.task_id)
@store_options
def show(task_id: str, url: str, as_json: bool) -> None:
    """Show all that is known of a task."""
    task = with_store(url, lambda store: inspect.one_task(store, task_id), must_exist=True)
    if as_json:
        output.document(inspect.task_view(task))
    else:
        show_task(task)


@tasks.command("why")
@click.argument("task_id", type=options.task_id)
@store_options
def explain(task_id: str, url: str, as_json: bool) -> None:
    """Say in one sentence why a task stands where it stands."""
    explanation = with_store(url, lambda store: why(store, task_id), must_exist=True)
    if as_json:
        output.document(explanation)
    else:
        output.line(explanation.text)


@tasks.command("log")
@click.argument("task_id", type=options.task_id)
@store_options
def log(task_id: str, url: str, as_json: bool) -> None:
    """Print the latest log lines of a task, the first one first."""
    lines = kept_log(with_store(url, lambda store: inspect.one_task(store, task_id), must_exist=True))
    if as_json:
        output.document([{"at_ms": line.at_ms, "level": line.level, "text": line.text} for line in lines])
    else:
        show_log(lines)


@tasks.command("cancel")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@click.option("--reason", default="cancelled from the command line", show_default=True, help="Recorded with the task.")
@bulk_options(by_state(_UNFINISHED))
@store_options
@click.pass_context
def cancel(ctx: click.Context, task_ids: tuple[str, ...], reason: str, bulk: Bulk, url: str, as_json: bool) -> None:
    """Keep waiting tasks from running, and tell running ones to stop."""
    bulk.check(task_ids)
    reason = actions.check_reason(reason)
    if bulk.all:
        make_change = partial(lifecycle.cancel, reason=reason)
        words = Words("cancel", "cancelled", "task", tells=True)
        change_all(url, bulk, bulk.tasks_in(_UNFINISHED), make_change, words, as_json)
        return
    verdicts = with_store(url, lambda store: actions.cancel(store, task_ids, reason), must_exist=True)
    ctx.exit(report(task_ids, verdicts, "cancelled", as_json, _cancelled))


@tasks.command("prioritize")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@click.option("--priority", type=int, required=True, help="From -100 to 100, higher is sooner.")
@bulk_options(by_state(WAITING_STATES))
@store_options
@click.pass_context
def prioritize(
    ctx: click.Context, task_ids: tuple[str, ...], priority: int, bulk: Bulk, url: str, as_json: bool
) -> None:
    """Give waiting tasks another priority, and the place in their queue that goes with it."""
    bulk.check(task_ids)
    check_priority(priority)
    if bulk.all:
        make_change = partial(lifecycle.prioritize, priority=priority)
        words = Words("prioritize", "prioritized", "task")
        change_all(url, bulk, bulk.tasks_in(WAITING_STATES), make_change, words, as_json)
        return
    verdicts = with_store(url, lambda store: actions.prioritize(store, task_ids, priority), must_exist=True)
    ctx.exit(report(task_ids, verdicts, "given another priority", as_json, lambda _: f"has priority {priority} now"))


def _cancelled(verdict: Verdict) -> str:
    if verdict.repeated:
        return "was cancelled before"
    return "is running and is being told to stop" if verdict.state is State.CLAIMED else "is cancelled"


def _row(task: Task, now_ms: int) -> list[object]:
    return [
        task.task_id,
        task.type,
        task.queue,
        task.state,
        task.priority,
        f"{task.attempt}/{task.policy.max_attempts}",
        f"{about_ms(now_ms - task.created_at_ms)} ago",
        _note(task, now_ms),
    ]


def _note(task: Task, now_ms: int) -> str:
    if task.state in (State.SCHEDULED, State.RETRY_PENDING):
        return f"due in {about_ms(task.run_at_ms - now_ms)}" if task.run_at_ms > now_ms else "due"
    if task.state is State.CLAIMED:
        return f"by {task.worker_id}"
    return task.reason or ""
