"""`holdfast demo`."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.options import duration_type, json_option

if TYPE_CHECKING:
    from holdfast.demo.run import Plan, Screen
    from holdfast.demo.snapshot import Summary

#: Without a terminal no user can press Ctrl-C.
_UNATTENDED_MS = 20_000


@click.command()
@click.option(
    "--for", "duration_ms", type=duration_type("--for"), metavar="DURATION", help="Stop after this long, such as 20s."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of child processes of the worker.",
)
@click.option("--url", metavar="URL", help="Use this store instead of a new SQLite file in the temporary folder.")
@json_option
def demo(duration_ms: int | None, processes: int, url: str | None, as_json: bool) -> None:
    """Run a live demo: tasks are enqueued, run, retried and dead-lettered.

    Without a terminal it ends after 20 s; in a terminal it runs until Ctrl-C or --for.
    """
    from holdfast.demo.run import Plan, run

    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    is_live = output.at_terminal() and not as_json
    if duration_ms is None and not is_live:
        duration_ms = _UNATTENDED_MS
    plan = Plan(
        url=url or f"sqlite:///{folder / 'demo.db'}",
        worker_log=folder / "worker.log",
        duration_ms=duration_ms,
        processes=processes,
        queue_suffix=f"-{secrets.token_hex(2)}" if url else "",
    )
    with _screen(plan, is_live, as_json) as screen:
        end = asyncio.run(run(plan, screen))
    _print(end, as_json, None if url else folder)
    sys.exit(0 if end.adds_up else 1)


@contextmanager
def _screen(plan: Plan, is_live: bool, as_json: bool) -> Iterator[Screen]:
    from holdfast.demo.screen import LiveScreen, PlainScreen, live

    if not is_live:
        yield PlainScreen(output.chatter if as_json else output.line)
        return
    from rich.console import Console

    ends = "(Ctrl-C ends it)" if plan.duration_ms is None else f"of {plan.duration_ms / 1000:g}s"
    with live(Console()) as place:
        yield LiveScreen(place, ends)


def _print(end: Summary, as_json: bool, folder: Path | None) -> None:
    from holdfast.stores.open import redacted

    if as_json:
        output.document({**_numbers(end), "adds_up": end.adds_up, "url": redacted(end.url), "seconds": end.seconds})
        return
    numbers = _numbers(end)
    enqueued = numbers.pop("enqueued")
    parts = " + ".join(f"{count:,} {name.replace('_', '-')}" for name, count in numbers.items())
    sign = "=" if end.adds_up else "≠"
    output.line(f"{enqueued:,} enqueued {sign} {parts}")
    if not end.adds_up:
        output.chatter(f"holdfast: the sum is wrong, which must not happen; the worker's log is {end.worker_log}")
    output.line("Look further:")
    output.line(f"  export HOLDFAST_URL={shlex.quote(redacted(end.url))}")
    for command in ("tasks ls", "dead ls", "dead ls --by-error", "queues ls", "doctor"):
        output.line(f"  holdfast {command}")
    if folder is not None:
        output.line(f"Delete {folder} when you are done.")


def _numbers(end: Summary) -> dict[str, int]:
    """The parts of the sum; those that are rare are left out when they are 0."""
    parts = {
        "enqueued": end.enqueued,
        "succeeded": end.succeeded,
        "dead_lettered": end.dead_lettered,
        "waiting": end.waiting,
        "cancelled": end.cancelled,
    }
    rare = {"failed": end.failed, "running": end.running}
    return {**parts, **{name: count for name, count in rare.items() if count}}
