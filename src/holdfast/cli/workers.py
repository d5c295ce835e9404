"""`holdfast workers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import click
import msgspec

from holdfast.admin import workers as admin
from holdfast.admin.inspect import about_ms, several
from holdfast.admin.views import task_view
from holdfast.cli import output
from holdfast.cli.bulk import can_ask
from holdfast.cli.listing import watched
from holdfast.cli.options import iso_time, store_options, with_store
from holdfast.cli.tables import Column
from holdfast.clock import SystemClock
from holdfast.core.names import format_bytes
from holdfast.core.task import Task
from holdfast.stores.contract import Store, WorkerRecord
from holdfast.worker.options import MAX_CONCURRENCY

_COLUMNS = (
    "worker",
    "status",
    Column("host", 9),
    Column("pid", 10, "number"),
    Column("version", 8),
    Column("queues", 2, "long"),
    Column("types", 12, "number"),
    Column("processes", 7, "number"),
    Column("concurrency", 6, "number"),
    Column("running", 1, "number"),
    Column("rate", 4, "number"),
    Column("memory", 5, "number"),
    Column("up", 11),
    Column("seen", 3),
)
_TASK_COLUMNS = (
    Column("task", kind="id"),
    "type",
    Column("queue", 1),
    Column("process", 3),
    Column("attempt", 2, "number"),
    "#since",
)


@click.group(no_args_is_help=False)
def workers() -> None:
    """List, show, drain, resume and stop workers, change their concurrency."""


@workers.command("ls", short_help="List workers, running ones first.")
@watched
@store_options
def list_workers(url: str, as_json: bool) -> None:
    """List workers, running ones first; rate is the number of runs that ended in the last minute."""
    found = with_store(url, admin.current_workers, must_exist=True, in_part=True)
    if as_json:
        output.document(found)
        return
    now_ms = SystemClock().now_ms()
    output.table(_COLUMNS, [_row(worker, now_ms) for worker in found], "No worker is running.")


@workers.command("show", short_help="Show a worker and its running tasks.")
@click.argument("worker", metavar="WORKER")
@store_options
def show_worker(worker: str, url: str, as_json: bool) -> None:
    """Show a worker and its running tasks; a prefix of its id is enough."""

    async def look(store: Store) -> tuple[WorkerRecord, list[Task]]:
        found = await admin.one_worker(store, worker)
        tasks = await admin.running_tasks(store, found)
        return admin.as_of_now(found, len(tasks)), tasks

    found, tasks = with_store(url, look, must_exist=True)
    if as_json:
        output.document({**msgspec.to_builtins(found), "tasks": [task_view(task, history=False) for task in tasks]})
        return
    now_ms = SystemClock().now_ms()
    output.details(_facts(found, now_ms))
    output.table(_TASK_COLUMNS, [_task_row(task, found, now_ms) for task in tasks], "It runs no task.")


@workers.command("concurrency")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@click.argument("number", type=click.IntRange(1, MAX_CONCURRENCY), metavar="N")
@click.option("--all", "every", is_flag=True, help="Select all running workers.")
@store_options
def concurrency(names: tuple[str, ...], number: int, every: bool, url: str, as_json: bool) -> None:
    """Change how many tasks workers run at once in each process.

    It takes effect at the next heartbeat, within a third of a lease. Running tasks beyond N continue.
    """
    if every == bool(names):
        raise click.UsageError("name the workers, or write --all")
    ordered = with_store(url, lambda store: admin.set_concurrency(store, names, number), must_exist=True)
    if as_json:
        output.document([{"worker_id": worker_id, "concurrency": number} for worker_id in ordered])
        return
    for worker_id in ordered:
        output.line(
            f"worker {worker_id} runs {several(number, 'task')} at once in each process from its next heartbeat"
        )


def _all_option(text: str) -> Callable[[Any], Any]:
    return click.option("--all", "every", is_flag=True, help=text)


@workers.command("drain", short_help="Let workers claim no more tasks.")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@_all_option("Select all running workers.")
@store_options
def drain(names: tuple[str, ...], every: bool, url: str, as_json: bool) -> None:
    """Let workers claim no more tasks; running tasks continue, and the workers stay.

    It takes effect at the next heartbeat, within a third of a lease. `holdfast workers resume` undoes it.
    """
    _order(names, every, url, as_json, "drain", "claims no more tasks from its next heartbeat")


@workers.command("resume")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@_all_option("Select all running workers.")
@store_options
def resume(names: tuple[str, ...], every: bool, url: str, as_json: bool) -> None:
    """Let drained workers claim tasks again."""
    _order(names, every, url, as_json, "run", "claims tasks again from its next heartbeat")


@workers.command("stop")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@_all_option("Select all running workers.")
@click.option("--yes", is_flag=True, help="With --all: do not ask for confirmation.")
@store_options
def stop(names: tuple[str, ...], every: bool, yes: bool, url: str, as_json: bool) -> None:
    """Shut workers down gracefully, as SIGTERM does.

    It takes effect at the next heartbeat, within a third of a lease. A process manager may start them again.
    """
    if every and not yes and not (can_ask() and click.confirm("Stop all running workers?", err=True)):
        raise click.UsageError("nothing was changed: stop --all needs a confirmation, or --yes")
    _order(names, every, url, as_json, "stop", "stops from its next heartbeat on")


def _order(
    names: tuple[str, ...], every: bool, url: str, as_json: bool, mode: Literal["run", "drain", "stop"], said: str
) -> None:
    if every == bool(names):
        raise click.UsageError("name the workers, or write --all")
    ordered = with_store(url, lambda store: admin.set_mode(store, names, mode), must_exist=True)
    if as_json:
        output.document([{"worker_id": worker_id, "mode": mode} for worker_id in ordered])
        return
    for worker_id in ordered:
        output.line(f"worker {worker_id} {said}")


def _row(worker: WorkerRecord, now_ms: int) -> list[object]:
    return [
        worker.worker_id,
        _status(worker),
        worker.host,
        worker.pid,
        worker.version,
        ",".join(worker.queues),
        len(worker.types),
        worker.processes,
        worker.concurrency,
        worker.running,
        f"{worker.ended_last_minute}/min",
        format_bytes(worker.memory_bytes),
        about_ms(now_ms - worker.started_at_ms),
        f"{about_ms(now_ms - worker.seen_at_ms)} ago",
    ]


def _facts(worker: WorkerRecord, now_ms: int) -> list[tuple[str, object]]:
    return [
        ("worker", worker.worker_id),
        ("status", _status(worker)),
        ("host", worker.host),
        ("pid", worker.pid),
        ("version", worker.version),
        ("queues", ", ".join(worker.queues)),
        ("types", ", ".join(worker.types)),
        ("slots", f"{several(worker.processes, 'process', 'processes')} × {several(worker.concurrency, 'slot')}"),
        ("running", worker.running),
        ("ended in the last minute", worker.ended_last_minute),
        ("memory", format_bytes(worker.memory_bytes)),
        ("started", iso_time(worker.started_at_ms)),
        ("seen", f"{about_ms(now_ms - worker.seen_at_ms)} ago"),
    ]


def _task_row(task: Task, worker: WorkerRecord, now_ms: int) -> list[object]:
    return [
        task.task_id,
        task.type,
        task.queue,
        (task.worker_id or "").removeprefix(worker.worker_id).strip(":"),
        task.attempt,
        about_ms(now_ms - (task.claimed_at_ms or now_ms)),
    ]


def _status(worker: WorkerRecord) -> str:
    return worker.status if worker.alive else "gone"
