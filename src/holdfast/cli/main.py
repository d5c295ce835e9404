"""The `holdfast` command."""

from __future__ import annotations

import click

from holdfast.cli.lazy import LazyCommand, LazyGroup
from holdfast.version import __version__

_COMMANDS = {
    "demo": LazyCommand("holdfast.cli.demo", "demo", "Show tasks being recorded, run, retried and dead-lettered."),
    "worker": LazyCommand("holdfast.cli.worker", "worker", "Run the tasks of an app."),
    "server": LazyCommand("holdfast.cli.server", "server", "Serve the store over HTTP."),
    "enqueue": LazyCommand("holdfast.cli.enqueue", "enqueue", "Record a task."),
    "tasks": LazyCommand("holdfast.cli.tasks", "tasks", "List, show, explain, prioritize and cancel tasks."),
    "dead": LazyCommand("holdfast.cli.dead", "dead", "List, show, replay and discard dead letters."),
    "queues": LazyCommand("holdfast.cli.queues", "queues", "List, pause, resume, order and spread queues."),
    "schedules": LazyCommand(
        "holdfast.cli.schedules", "schedules", "List, make, change, pause, resume and run schedules."
    ),
    "workers": LazyCommand("holdfast.cli.workers", "workers", "List and show workers, change their concurrency."),
    "partitions": LazyCommand("holdfast.cli.partitions", "partitions", "List partitions."),
    "token": LazyCommand("holdfast.cli.token", "token", "Make, list and revoke tokens of the HTTP API."),
    "migrate": LazyCommand("holdfast.cli.migrate", "migrate", "Bring a store's schema up to this version."),
    "doctor": LazyCommand("holdfast.cli.doctor", "doctor", "Check the store, the workers and the tasks."),
    "bench": LazyCommand("holdfast.bench.command", "bench", "Measure throughput and latency on this machine."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "--version", prog_name="holdfast", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Holdfast: a task queue that is fast and never lets go.

    Every command takes --url (or HOLDFAST_URL) and --json, and exits with 0 (fine), 1 (no) or 2 (wrong call).
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


if __name__ == "__main__":
    main(prog_name="holdfast")
