"""Two faces of the demo: a live table for a terminal, a line now and then for a pipe."""

from __future__ import annotations

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.admin.inspect import first_line, printable
from holdfast.core.task import State
from holdfast.demo.snapshot import Snapshot, error_of, progress_of

COLUMNS = (
    (State.READY, "ready", "cyan"),
    (State.SCHEDULED, "scheduled", "blue"),
    (State.CLAIMED, "running", "yellow"),
    (State.RETRY_PENDING, "retrying", "magenta"),
    (State.SUCCEEDED, "succeeded", "green"),
    (State.DEAD_LETTERED, "dead-lettered", "red"),
    (State.CANCELLED, "cancelled", "bright_black"),
)

#: In a terminal with fewer columns than this, the table has the short names.
WIDE = 100
_SHORT = {
    State.SCHEDULED: "sched",
    State.CLAIMED: "run",
    State.RETRY_PENDING: "retry",
    State.SUCCEEDED: "ok",
    State.DEAD_LETTERED: "dead",
    State.CANCELLED: "cancel",
}


class PlainScreen:
    """One line every two seconds."""

    interval_ms = 2_000

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def show(self, snapshot: Snapshot, elapsed_ms: int, enqueued: int) -> None:
        """Says how it stands."""
        states = "  ".join(f"{name} {snapshot.total(state)}" for state, name, _ in COLUMNS)
        rate = sum(snapshot.rates.values())
        self._say(f"{elapsed_ms / 1000:4.0f}s  enqueued {enqueued}  {states}  ({rate:.0f}/s)")


class LiveScreen:
    """A table that changes in place, with bars for what is running and the last dead letters."""

    interval_ms = 500

    def __init__(self, live: Live, ends: str) -> None:
        self._live = live
        self._ends = ends
        self._is_wide = live.console.width >= WIDE

    def show(self, snapshot: Snapshot, elapsed_ms: int, enqueued: int) -> None:
        """Redraws."""
        title = Text.assemble(
            ("Holdfast demo", "bold"), f"  {elapsed_ms // 1000}s  enqueued {enqueued:,}  {self._ends}"
        )
        what = Text("Tasks fail and are retried; what still fails is a dead letter. None is lost.", style="dim")
        table = _queues(snapshot, wide=self._is_wide)
        self._live.update(Group(title, what, table, *_running(snapshot), *_dead(snapshot)))


def live(console: Console) -> Live:
    """The place on the terminal that the live screen draws into."""
    return Live(console=console, refresh_per_second=4)


def _queues(snapshot: Snapshot, *, wide: bool) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("queue")
    for state, name, style in COLUMNS:
        table.add_column(name if wide else _SHORT.get(state, name), justify="right", style=style)
    table.add_column("done/s", justify="right")
    for counts in snapshot.queues:
        numbers = [str(counts.states.get(state, 0)) for state, _, _ in COLUMNS]
        table.add_row(counts.queue, *numbers, f"{snapshot.rates.get(counts.queue, 0):.0f}")
    totals = [str(snapshot.total(state)) for state, _, _ in COLUMNS]
    table.add_section()
    table.add_row("all", *totals, f"{sum(snapshot.rates.values()):.0f}", style="bold")
    return table


def _running(snapshot: Snapshot) -> list[RenderableType]:
    if not snapshot.running:
        return []
    table = Table.grid(padding=(0, 2))
    for task in snapshot.running:
        note, share = progress_of(task)
        bar = ProgressBar(total=1.0, completed=share, width=40)
        table.add_row(Text(printable(note)), bar, f"{share:.0%}", f"attempt {task.attempt}")
    return [Text("running", style="bold"), table, Text()]


def _dead(snapshot: Snapshot) -> list[RenderableType]:
    if not snapshot.dead:
        return []
    table = Table.grid(padding=(0, 2))
    for task in snapshot.dead:
        error = Text(printable(first_line(error_of(task), 80)), style="red")
        table.add_row(Text(task.type), f"after {task.attempt}", error)
    return [Text("last dead letters", style="bold"), table]
