"""The report for people."""

from __future__ import annotations

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


def number(value: float) -> str:
    """A number with as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≥' if figure.target.at_least else '≤'} {figure.target.value:,g}"
