"""`holdfast tasks`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial

import click
from msgspec.structs import replace

from holdfast.admin import actions, copies, inspect
from holdfast.admin.inspect import about_ms, first_line, json_value, last_failure, progress_text
from holdfast.admin.search import Filter, Found, search, whole_id
from holdfast.admin.views import task_view
from holdfast.admin.why import Explanation, why
from holdfast.cli import options, output
from holdfast.cli.bulk import Bulk, Words, bulk_options, by_state, change_all, change_named, copy_named, report
from holdfast.cli.enqueue import crypto_of_app, url_of
from holdfast.cli.listing import end_of_page, page_facts, say_unknown_names, search_options, watched
from holdfast.cli.options import app_option, iso_time, store_options, with_store
from holdfast.cli.tables import Column
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.durations import format_ms
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Verdict
from holdfast.core.priority import check_priority
from holdfast.core.retry import RunPolicy
from holdfast.core.task import FINAL_STATES, WAITING_STATES, Attempt, LogLine, State, Task, kept_log, shown_progress
from holdfast.stores.contract import Query, Store

_HISTORY = (
    Column("delivery", 4, "number"),
    "#attempt",
    "outcome",
    Column("started", 2),
    Column("took", 1, "number"),
    Column("worker", 3, "long"),
    Column("error", kind="wrapped"),
)


def show_task(task: Task) -> None:
    """Prints envelope, state, arguments, result, history, the last error and the log."""
    output.details(_facts(task))
    if task.history:
        output.table(_HISTORY, [_attempt(attempt) for attempt in task.history], "")
    failure = last_failure(task)
    if failure is not None and failure.traceback:
        output.block("last traceback", failure.traceback)
    lines = kept_log(task)
    if lines:
        output.block("log", "\n".join(map(_log_line, lines)))


def show_log(lines: Sequence[LogLine]) -> None:
    """Prints log lines, one a line."""
    for line in lines:
        output.line(_log_line(line))


def _log_line(line: LogLine) -> str:
    text = " ".join(line.text.splitlines())
    return f"{iso_time(line.at_ms)} {line.level} {text}"


def _facts(task: Task) -> list[tuple[str, object]]:
    policy = task.policy
    return [
        ("task_id", task.task_id),
        ("type", task.type),
        ("queue", task.queue),
        ("state", task.state),
        ("reason", task.reason),
        ("cancel requested", "yes" if task.cancel_requested else None),
        ("attempts", f"{task.attempt} of {policy.max_attempts}, {task.deliveries} deliveries"),
        ("backoff", f"{format_ms(policy.base_ms)} doubling up to {format_ms(policy.cap_ms)}"),
        ("priority", task.priority),
        ("request_id", task.request_id),
        ("created", iso_time(task.created_at_ms)),
        ("due", iso_time(task.run_at_ms)),
        ("finished", iso_time(task.finished_at_ms)),
        ("worker", task.worker_id),
        ("claimed", iso_time(task.claimed_at_ms)),
        ("lease until", iso_time(task.lease_expires_at_ms)),
        ("headers", json.dumps(task.headers) if task.headers else None),
        ("arguments", _json(task.payload)),
        ("time limits", _limits(policy)),
        ("progress", progress_text(shown_progress(task))),
        ("result", _json(task.result)),
    ]


def _limits(policy: RunPolicy) -> str:
    limits = (
        ("asked to end after", policy.timeout_ms),
        ("killed after", policy.hard_timeout_ms),
        ("to be started within", policy.expires_ms),
    )
    return ", ".join(f"{what} {format_ms(limit_ms)}" for what, limit_ms in limits if limit_ms is not None)


def _attempt(attempt: Attempt) -> list[object]:
    error = attempt.error
    return [
        attempt.delivery,
        attempt.attempt,
        attempt.outcome,
        iso_time(attempt.started_at_ms),
        about_ms(attempt.ended_at_ms - attempt.started_at_ms),
        attempt.worker_id,
        f"{error.name}: {first_line(error.message)}" if error else "",
    ]


def _json(data: bytes | None) -> str | None:
    return None if data is None else json.dumps(json_value(data), ensure_ascii=False)


# -- tasks ---------------------------------------------------------------------------------------------------


_UNFINISHED = frozenset(State) - FINAL_STATES
_COLUMNS = (
    Column("task_id", kind="id"),
    "type",
    Column("queue", 2),
    "state",
    Column("priority", 5, "number"),
    Column("attempts", 3),
    Column("created", 4),
    Column("note", 1, "long"),
)


@click.group(no_args_is_help=False)
def tasks() -> None:
    """List, show, explain, prioritize, reschedule, rerun and cancel tasks."""


@tasks.command("ls")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=options.StateChoice(State),
    metavar="STATE",
    help=f"Only tasks in this state: {', '.join(State)}; repeatable.",
)
@search_options("were enqueued", "created")
@watched
@store_options
def list_tasks(states: tuple[str, ...], query: Query, given: Filter, url: str, as_json: bool) -> None:
    """List tasks, newest first.

    --since, --until and --arg compare up to 50,000 tasks; a search that ends there says so, and prints the cursor.
    """
    query = replace(query, states=frozenset(State(state) for state in states) or None)

    async def look(store: Store) -> Found:
        found = await search(store, query, given)
        if not found.tasks:
            await say_unknown_names(store, query)
        return found

    found = with_store(url, look, must_exist=True, in_part=True)
    if as_json:
        output.document({"tasks": [task_view(task, history=False) for task in found.tasks], **page_facts(found)})
        return
    now_ms = SystemClock().now_ms()
    output.table(_COLUMNS, [_row(task, now_ms) for task in found.tasks], "No task matches.")
    end_of_page(found)


@tasks.command("show")
@click.argument("task_id", type=options.task_id)
@store_options
def show(task_id: str, url: str, as_json: bool) -> None:
    """Show a task in detail."""
    task = with_store(url, lambda store: _named(store, task_id), must_exist=True)
    if as_json:
        output.document(task_view(task, history=True))
    else:
        show_task(task)


@tasks.command("why")
@click.argument("task_id", type=options.task_id)
@store_options
def explain(task_id: str, url: str, as_json: bool) -> None:
    """Explain in one sentence why a task is in its current state."""

    async def ask(store: Store) -> Explanation:
        return await why(store, await whole_id(store, task_id))

    explanation = with_store(url, ask, must_exist=True)
    if as_json:
        output.document(explanation)
    else:
        output.line(explanation.text)


@tasks.command("log")
@click.argument("task_id", type=options.task_id)
@store_options
def log(task_id: str, url: str, as_json: bool) -> None:
    """Print the latest log lines of a task, oldest first."""
    lines = kept_log(with_store(url, lambda store: _named(store, task_id), must_exist=True))
    if as_json:
        output.document([{"at_ms": line.at_ms, "level": line.level, "text": line.text} for line in lines])
    else:
        show_log(lines)


@tasks.command("cancel")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@click.option(
    "--reason", default="cancelled from the command line", show_default=True, help="Reason to store with the task."
)
@bulk_options(by_state(_UNFINISHED))
@store_options
@click.pass_context
def cancel(ctx: click.Context, task_ids: tuple[str, ...], reason: str, bulk: Bulk, url: str, as_json: bool) -> None:
    """Cancel waiting tasks, and tell running ones to stop."""
    bulk.check(task_ids)
    reason = actions.check_reason(reason)
    if bulk.all:
        make_change = partial(lifecycle.cancel, reason=reason)
        words = Words("cancel", "cancelled", "task", tells=True)
        change_all(url, bulk, bulk.tasks_in(_UNFINISHED), make_change, words, as_json)
        return
    found, verdicts = change_named(url, task_ids, lambda store, ids: actions.cancel(store, ids, reason))
    ctx.exit(report(found, verdicts, "cancelled", as_json, _cancelled))


@tasks.command("prioritize")
@click.argument("task_ids", nargs=-1, type=options.task_id, metavar="[TASK_ID]...")
@click.option("--priority", type=int, required=True, help="Priority from -100 to 100; higher runs sooner.")
@bulk_options(by_state(WAITING_STATES))
@store_options
@click.pass_context
def prioritize(
    ctx: click.Context, task_ids: tuple[str, ...], priority: int, bulk: Bulk, url: str, as_json: bool
) -> None:
    """Change the priority of waiting tasks."""
    bulk.check(task_ids)
    check_priority(priority)
    if bulk.all:
        make_change = partial(lifecycle.prioritize, priority=priority)
        words = Words("prioritize", "prioritized", "task")
        change_all(url, bulk, bulk.tasks_in(WAITING_STATES), make_change, words, as_json)
        return
    found, verdicts = change_named(url, task_ids, lambda store, ids: actions.prioritize(store, ids, priority))
    ctx.exit(report(found, verdicts, "given another priority", as_json, lambda _: f"has priority {priority} now"))


async def _named(store: Store, task_id: str) -> Task:
    return await inspect.one_task(store, await whole_id(store, task_id))


@tasks.command("run-now", short_help="Run delayed tasks now.")
@click.argument("task_ids", nargs=-1, required=True, type=options.task_id, metavar="TASK_ID...")
@store_options
@click.pass_context
def run_now(ctx: click.Context, task_ids: tuple[str, ...], url: str, as_json: bool) -> None:
    """Run delayed tasks now, also those that wait for another attempt."""
    found, verdicts = change_named(url, task_ids, actions.run_now)
    ctx.exit(report(found, verdicts, "run now", as_json, lambda _: "is due now"))


@tasks.command("reschedule", short_help="Run waiting tasks at another time.")
@click.argument("task_ids", nargs=-1, required=True, type=options.task_id, metavar="TASK_ID...")
@click.option("--at", "run_at_ms", type=options.time, metavar="TIME", help="Run at this time: 2030-01-31T09:00:00Z.")
@click.option(
    "--in",
    "delay_ms",
    type=options.duration_type("--in"),
    metavar="DURATION",
    help="Run after this long, such as 30s or 10m.",
)
@store_options
@click.pass_context
def reschedule(
    ctx: click.Context, task_ids: tuple[str, ...], run_at_ms: int | None, delay_ms: int | None, url: str, as_json: bool
) -> None:
    """Run waiting tasks at another time; attempts and arguments stay as they are."""
    if (run_at_ms is None) == (delay_ms is None):
        raise click.UsageError("give the new time: either --at or --in")
    at_ms = SystemClock().now_ms() + delay_ms if run_at_ms is None and delay_ms is not None else run_at_ms or 0
    found, verdicts = change_named(url, task_ids, lambda store, ids: actions.reschedule(store, ids, at_ms))
    ctx.exit(report(found, verdicts, "rescheduled", as_json, lambda _: f"is due at {iso_time(at_ms)}"))


@tasks.command("rerun", short_help="Enqueue finished tasks again as new tasks.")
@click.argument("task_ids", nargs=-1, required=True, type=options.task_id, metavar="TASK_ID...")
@app_option("Sign and encrypt with the keys of this app.")
@store_options
@click.pass_context
def rerun(ctx: click.Context, task_ids: tuple[str, ...], app_reference: str | None, url: str, as_json: bool) -> None:
    """Enqueue finished tasks again as new tasks, with the same arguments and policy.

    Signed and encrypted tasks need the keys of their app: --app, or HOLDFAST_KEYS.
    """
    crypto = crypto_of_app(app_reference)
    new_id = IdSource(SystemClock().now_ms, os.urandom).task_id

    async def copied(store: Store, task_id: str) -> str:
        return await copies.rerun(store, task_id, new_id, crypto)

    ctx.exit(copy_named(url_of(ctx, url, app_reference), task_ids, copied, "runs again as", as_json))


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
