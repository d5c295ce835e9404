"""`holdfast workers`."""

from __future__ import annotations

import click
import msgspec

from holdfast.admin import inspect
from holdfast.admin import workers as admin
from holdfast.admin.text import about_ms, several
from holdfast.cli import output
from holdfast.cli.options import iso_time, store_options, with_store
from holdfast.clock import SystemClock
from holdfast.core.sizes import format_bytes
from holdfast.core.task import Task
from holdfast.stores.contract import Store, WorkerRecord
from holdfast.worker.options import MAX_CONCURRENCY


@click.group(no_args_is_help=False)
def workers() -> None:
    """List workers, show one, change how much they do at once."""


@workers.command("ls")
@store_options
def list_workers(url: str, as_json: bool) -> None:
    """List workers, the living first; rate is how many runs have ended in the last minute."""
    found = with_store(url, inspect.worker_table, must_exist=True)
    if as_json:
        output.document(found)
        return
    now_ms = SystemClock().now_ms()
    columns = ["worker", "status", "host", "#pid", "version", "queues", "#types", "#processes", "#concurrency"]
    columns += ["#running", "#rate", "#memory", "up", "seen"]
    output.table(columns, [_row(worker, now_ms) for worker in found], "No worker is running.")


@workers.command("show")
@click.argument("worker", metavar="WORKER")
@store_options
def show_worker(worker: str, url: str, as_json: bool) -> None:
    """Show a worker and the tasks that it runs; the beginning of its id is enough."""

    async def look(store: Store) -> tuple[WorkerRecord, list[Task]]:
        found = await admin.one_worker(store, worker)
        return found, await admin.running_tasks(store, found)

    found, tasks = with_store(url, look, must_exist=True)
    if as_json:
        output.document({**msgspec.to_builtins(found), "tasks": [inspect.task_view(task) for task in tasks]})
        return
    now_ms = SystemClock().now_ms()
    output.details(_facts(found, now_ms))
    columns = ["task", "type", "queue", "process", "#attempt", "#since"]
    output.table(columns, [_task_row(task, found, now_ms) for task in tasks], "It runs no task.")


@workers.command("concurrency")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@click.argument("number", type=click.IntRange(1, MAX_CONCURRENCY), metavar="N")
@click.option("--all", "everybody", is_flag=True, help="All workers that live.")
@store_options
def concurrency(names: tuple[str, ...], number: int, everybody: bool, url: str, as_json: bool) -> None:
    """Let workers run N tasks at once in each process.

    They heed it with their next heartbeat, a third of a lease later at most. What runs beyond N goes on.
    """
    if everybody == bool(names):
        raise click.UsageError("name the workers, or write --all")
    ordered = with_store(url, lambda store: admin.set_concurrency(store, names, number), must_exist=True)
    if as_json:
        output.document([{"worker_id": worker_id, "concurrency": number} for worker_id in ordered])
        return
    for worker_id in ordered:
        output.line(
            f"worker {worker_id} runs {several(number, 'task')} at once in each process from its next heartbeat"
        )


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
        ("slots", f"{several(worker.processes, 'process', 'processes')} × {worker.concurrency}"),
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
