"""`holdfast worker`: runs the tasks of an app."""

from __future__ import annotations

import asyncio
import random
import sys

import click

from holdfast.cli.options import duration_type
from holdfast.stores.contract import Retention, Store
from holdfast.worker.options import LogFormat, WorkerOptions


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
    "--lease",
    type=duration_type("--lease"),
    metavar="TIME",
    help="How long a claim outlives a lost worker.  [app: 30s]",
)
@click.option(
    "--grace",
    type=duration_type("--grace"),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="How long running tasks may go on after SIGTERM or Ctrl-C; a second signal ends at once.",
)
@click.option("--url", metavar="URL", help="The store, instead of the app's own.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged to stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object a line.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --log-format json.")
def worker(  # noqa: PLR0913, PLR0917  (click hands in each option)
    app: str,
    queues: str,
    processes: int,
    concurrency: int,
    lease: int | None,
    grace: int,
    url: str | None,
    log_level: str,
    log_format: LogFormat,
    as_json: bool,
) -> None:
    """Run the tasks of the app MODULE:APP until SIGTERM or Ctrl-C."""
    from holdfast.worker.logs import set_up_logging
    from holdfast.worker.supervisor import Supervisor

    log_format = "json" if as_json else log_format
    options = WorkerOptions(
        app=app,
        queues=queues,
        processes=processes,
        concurrency=concurrency,
        lease_ms=lease,
        grace_ms=grace,
        url=url,
        log_level=log_level,
        log_format=log_format,
    ).check()
    set_up_logging(log_level, log_format)

    async def run() -> int:
        return await Supervisor(options, _upkeep).run()

    sys.exit(asyncio.run(run()))


async def _upkeep(store: Store, owner: str, retention: Retention) -> None:
    from holdfast.maintenance.service import Upkeep

    await Upkeep(store, owner, retention, random_unit=random.random).run()
