"""`holdfast worker`: runs the tasks of an app."""

from __future__ import annotations

import asyncio
import functools
import random
import sys
from typing import Any

import click

from holdfast.cli.options import duration_type, log_options, size_type
from holdfast.core.schedule import Schedule
from holdfast.stores.contract import Retention, Store
from holdfast.worker.options import WorkerOptions


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--queues",
    default="default",
    show_default=True,
    metavar="LIST",
    help="In strict order (high,low) or by weight (high=5,default=2,low=1).",
)
@click.option("--processes", default=1, show_default=True, metavar="N", help="Child processes.")
@click.option("--concurrency", default=50, show_default=True, metavar="N", help="Tasks at once in each process.")
@click.option(
    "--cpu-processes",
    "alone",
    default=0,
    metavar="N",
    help='More processes, with one task at a time each, for types declared with run="process".  [as many as cores]',
)
@click.option(
    "--lease",
    "lease_ms",
    type=duration_type("--lease"),
    metavar="TIME",
    help="How long a claim outlives a lost worker.  [app: 30s]",
)
@click.option(
    "--grace",
    "grace_ms",
    type=duration_type("--grace"),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="How long running tasks may go on after SIGTERM or Ctrl-C; a second signal ends at once.",
)
@click.option(
    "--max-memory",
    type=size_type("--max-memory"),
    metavar="SIZE",
    help="Replace a child process that uses more, such as 400MB.",
)
@click.option("--max-tasks", type=int, metavar="N", help="Replace a child process that has run so many tasks.")
@click.option(
    "--max-age",
    "max_age_ms",
    type=duration_type("--max-age"),
    metavar="TIME",
    help="Replace a child process that is so old.",
)
@click.option("--burst", is_flag=True, help="End when there is nothing left to do.")
@click.option("--reload", is_flag=True, help="Replace the child processes when a source file changes: for development.")
@click.option(
    "--health",
    metavar="HOST:PORT",
    help="Answer /healthz, /readyz and /metrics over HTTP there; a port alone is one of 127.0.0.1.",
)
@click.option(
    "--ready-within",
    "ready_within_ms",
    type=duration_type("--ready-within"),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="With --health: not ready when the store has not answered a reserve for so long.",
)
@click.option("--url", metavar="URL", help="The store, instead of the app's own.")
@log_options
def worker(as_json: bool, **given: Any) -> None:
    """Run the tasks of the app MODULE:APP until SIGTERM or Ctrl-C."""
    from holdfast.worker.logs import set_up_logging
    from holdfast.worker.supervisor import Supervisor

    if as_json:
        given["log_format"] = "json"
    options = WorkerOptions(**given).check()
    set_up_logging(options.log_level, options.log_format)

    async def run() -> int:
        return await Supervisor(options, functools.partial(_upkeep, options.app)).run()

    sys.exit(asyncio.run(run()))


async def _upkeep(app: str, store: Store, owner: str, retention: Retention, schedules: tuple[Schedule, ...]) -> None:
    from holdfast.admin.schedules import keep_declared
    from holdfast.maintenance.service import Upkeep

    async with asyncio.TaskGroup() as group:  # a store too full for a new schedule must still be pruned
        group.create_task(keep_declared(store, schedules, app if ":" in app else f"{app}:app"))
        group.create_task(Upkeep(store, owner, retention, random_unit=random.random).run())
