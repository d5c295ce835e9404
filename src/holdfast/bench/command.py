"""The `bench` command."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.bench.figures import Report
from holdfast.bench.setting import Setting, Sizes


@click.command()
@click.option("--url", metavar="URL", help="Measure this store instead of a new SQLite file; the tasks stay in it.")
@click.option(
    "--store",
    type=click.Choice(["sqlite", "redis", "redis-cluster", "postgres"]),
    default="sqlite",
    show_default=True,
    help="Start a store to measure: SQLite files, a redis-server with its append-only file on, a cluster of three "
    "(beside a single one), or a PostgreSQL with fsync and synchronous_commit on.",
)
@click.option(
    "--tasks", type=click.IntRange(min=100), metavar="N", help="Number of tasks to drain and to enqueue in bulk."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=200,
    show_default=True,
    help="Run this many tasks at once in the worker.",
)
@click.option("--quick", is_flag=True, help="Run a tenth of everything: too short for a comparison.")
@click.option("--full", is_flag=True, help="Also measure a backlog of 1,000,000 tasks; takes minutes.")
@click.option(
    "--server",
    is_flag=True,
    help="Measure `holdfast server` in front of the store instead, and 2,000 clients that long-poll it.",
)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Put the SQLite files in this folder. [default: the system's folder for temporary files]",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the figures to this file as JSON.",
)
@click.option("--targets", is_flag=True, help="Print all figures, each with the target of the project.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def bench(  # noqa: PLR0913, PLR0917  (click hands in each option)
    url: str | None,
    store: str,
    tasks: int | None,
    concurrency: int,
    quick: bool,
    full: bool,
    server: bool,
    directory: Path | None,
    output: Path | None,
    targets: bool,
    as_json: bool,
) -> None:
    """Measure throughput and latency with real worker processes, and print five figures.

    --targets prints all of them, with the values that the project wants to reach on its own machine; the exit code is 0
    whether or not they are.
    """
    if server and (full or store == "redis-cluster"):
        raise click.UsageError("--server goes with neither --full nor --store redis-cluster")
    sizes = dataclasses.replace(Sizes.quick() if quick else Sizes(), concurrency=concurrency)
    if tasks is not None:
        sizes = dataclasses.replace(sizes, tasks=tasks, bare=min(tasks, sizes.bare))
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as place,
        _own_store(store, Path(place)) if url is None else nullcontext(_Own(url)) as own,
    ):
        report = _run(Setting(Path(place), sizes, own.url, own.described, own.beside), full=full, server=server)
    if output is not None:
        output.write_bytes(report.as_json())
    _show(report, targets=targets or server, as_json=as_json)


class _Own(NamedTuple):
    """The URL of a fresh store, what it is, in words, and the URL of one to compare with."""

    url: str | None
    described: str = ""
    beside: str | None = None


@contextmanager
def _own_store(store: str, place: Path) -> Iterator[_Own]:
    if store == "sqlite":
        yield _Own(None)
        return
    from holdfast.bench.servers import OWN_SERVERS

    server = OWN_SERVERS[store]
    with ExitStack() as stack:
        url = stack.enter_context(server.start(place))
        beside = stack.enter_context(OWN_SERVERS[server.beside].start(place)) if server.beside else None
        yield _Own(url, server.described, beside)


def _run(setting: Setting, *, full: bool, server: bool) -> Report:
    from rich.console import Console

    from holdfast.bench.runner import run, run_server

    console = Console(stderr=True)
    with console.status("") as status:

        def tell(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(f"{text} …")

        return asyncio.run(run_server(setting, tell=tell) if server else run(setting, full=full, tell=tell))


def _show(report: Report, *, targets: bool, as_json: bool) -> None:
    if as_json:
        click.echo(report.as_json(), nl=False)
        return
    from holdfast.bench.table import show, show_in_short

    if targets:
        show(report)
    else:
        show_in_short(report)
