"""`holdfast workers`."""

from __future__ import annotations

import click

from holdfast.admin import inspect
from holdfast.admin.text import about_ms
from holdfast.cli import output
from holdfast.cli.options import store_options, with_store
from holdfast.clock import SystemClock
from holdfast.stores.contract import WorkerRecord


@click.group(no_args_is_help=False)
def workers() -> None:
    """List workers."""


@workers.command("ls")
@store_options
def list_workers(url: str, as_json: bool) -> None:
    """List workers, the living first."""
    found = with_store(url, inspect.worker_table, must_exist=True)
    if as_json:
        output.document(found)
        return
    now_ms = SystemClock().now_ms()
    columns = ["worker", "status", "host", "#pid", "queues", "#types", "#processes", "#running", "#slots", "up", "seen"]
    output.table(columns, [_row(worker, now_ms) for worker in found], "No worker is running.")


def _row(worker: WorkerRecord, now_ms: int) -> list[object]:
    return [
        worker.worker_id,
        worker.status if worker.alive else "gone",
        worker.host,
        worker.pid,
        ",".join(worker.queues),
        len(worker.types),
        worker.processes,
        worker.running,
        worker.processes * worker.concurrency,
        about_ms(now_ms - worker.started_at_ms),
        f"{about_ms(now_ms - worker.seen_at_ms)} ago",
    ]
