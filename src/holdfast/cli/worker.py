"""`holdfast worker`: runs the tasks of an app."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from holdfast.cli.options import duration_type, log_options, size_type
from holdfast.worker.options import WorkerOptions


@click.command()
@click.argument("app", metavar="MODULE:APP", envvar="HOLDFAST_APP")
@click.option(
    "--queues",
    metavar="LIST",
    help="Serve these queues, in strict order (high,low) or by weight (high=5,low=1).  [all queues of the app's types]",
)
@click.option("--processes", default=1, show_default=True, metavar="N", help="Number of child processes.")
@click.option(
    "--concurrency", default=50, show_default=True, metavar="N", help="Run this many tasks at once in each process."
)
@click.option(
    "--cpu-processes",
    "alone",
    default=0,
    metavar="N",
    help='Number of extra processes for types with run="process", one task at a time each.  [as many as cores]',
)
@click.option(
    "--lease",
    "lease_ms",
    type=duration_type("--lease"),
    metavar="TIME",
    help="Lease on claimed tasks; after this, a lost worker's tasks are requeued.  [app: 30s]",
)
@click.option(
    "--grace",
    "grace_ms",
    type=duration_type("--grace"),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Let running tasks finish for this long after SIGTERM or Ctrl-C; a second signal stops at once.",
)
@click.option(
    "--max-memory",
    type=size_type("--max-memory"),
    metavar="SIZE",
    help="Recycle child processes that use more memory than this, such as 400MB.",
)
@click.option("--max-tasks", type=int, metavar="N", help="Recycle a child process after this many tasks.")
@click.option(
    "--max-age",
    "max_age_ms",
    type=duration_type("--max-age"),
    metavar="TIME",
    help="Recycle child processes older than this.",
)
@click.option("--burst", is_flag=True, help="Exit when no task is left to run.")
@click.option(
    "--reload", is_flag=True, help="Restart the child processes when a source file changes (for development)."
)
@click.option(
    "--health",
    metavar="HOST:PORT",
    help="Serve /healthz, /readyz and /metrics at this address; a port alone means 127.0.0.1.",
)
@click.option(
    "--ready-within",
    "ready_within_ms",
    type=duration_type("--ready-within"),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="With --health: report not ready when the store has not answered for this long.",
)
@click.option("--url", metavar="URL", help="Use this store instead of the app's own.")
@click.option(
    "--log-tasks",
    type=click.Choice(["all", "failures", "none"]),
    default="all",
    show_default=True,
    help="Log starts and ends of tasks, only failed attempts, or nothing about tasks.",
)
@log_options
def worker(as_json: bool, **given: Any) -> None:
    """Run the tasks of the app MODULE:APP until SIGTERM or Ctrl-C.

    The app is also read from HOLDFAST_APP.
    """
    from holdfast.observe.logs import set_up_logging
    from holdfast.runtime.descriptors import allow_many
    from holdfast.stores.open import resolved
    from holdfast.worker.supervisor.main import Supervisor

    if as_json:
        given["log_format"] = "json"
    if given["url"] is not None:
        given["url"] = resolved(given["url"])
    options = WorkerOptions(**given).check()
    set_up_logging(options.log_level, options.log_format)
    allow_many()  # the queues and tasks of the children share the limit

    async def run() -> int:
        return await Supervisor(options).run()

    sys.exit(asyncio.run(run()))
