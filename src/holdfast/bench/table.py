"""The report for people."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

from holdfast.bench.figures import Figure, Report

_MET = {True: "[green]yes[/]", False: "[yellow]no[/]", None: ""}


def show(report: Report) -> None:
    """Prints the figures with their targets, and below them what they depend on."""
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("target", justify="right")
    table.add_column("met")
    for figure in report.figures:
        table.add_row(figure.title, number(figure.value), figure.unit, _target(figure), _MET[figure.met])
    console = Console(highlight=False)
    console.print(table)
    console.print()
    for part in (report.machine, report.versions, report.settings):
        console.print(", ".join(f"{name} {value}" for name, value in part.items()), style="dim", soft_wrap=True)


#: What a user of the queue asks for first, in words.
_IN_SHORT: Final = {
    "drain": "tasks that one worker process runs",
    "enqueue_one_sync": "tasks enqueued one by one",
    "enqueue_bulk": "tasks enqueued in bulk",
    "pickup_whole_p50": "from enqueue to start on an idle worker, median",
    "pickup_whole_p99": "the same, 99 of 100 tasks",
}


def show_in_short(report: Report) -> None:
    """Prints five figures, and a sentence that says what they mean."""
    known = {figure.name: figure for figure in report.figures}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right")
    table.add_column()
    for name, title in _IN_SHORT.items():
        if name in known:
            table.add_row(title, number(known[name].value), known[name].unit)
    console = Console(highlight=False)
    console.print(table)
    console.print()
    if "drain" in known and "pickup_whole_p50" in known:
        rate, start_ms = number(known["drain"].value), number(known["pickup_whole_p50"].value)
        console.print(
            f"On this machine, a worker process runs {rate} empty tasks per second, and an idle one starts a task "
            f"{start_ms} ms after the call that enqueues it."
        )
    console.print("All figures: --targets; for machines: --json.", style="dim")


def number(value: float) -> str:
    """A number with as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≥' if figure.target.at_least else '≤'} {figure.target.value:,g}"
