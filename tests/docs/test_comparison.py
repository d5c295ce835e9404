"""The column of Holdfast in the comparison is true of this tree, and the short table of the README is a part of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

import holdfast
from holdfast import Holdfast, Retry, TaskType
from holdfast.cli.main import main
from holdfast.core.durations import duration_ms
from holdfast.core.lifecycle import TRANSITIONS, Event
from holdfast.core.task import State
from holdfast.stores.open import DEFAULT_URL
from holdfast.version import __version__
from tests.support import ROOT

SOURCE = ROOT / "src" / "holdfast"
DAY_MS = 24 * 3_600_000


def table(page: str) -> dict[str, list[str]]:
    """The rows of the comparison in a page, by their first cell."""
    text = (ROOT / page).read_text(encoding="utf-8").partition("<!-- comparison -->\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    assert rows, f"{page} has no comparison"
    return {row[0].strip("| "): row[1:] for row in rows[2:]}


def default(function: Callable[..., object], name: str) -> object:
    return inspect.signature(function).parameters[name].default


def has_option(name: str) -> bool:
    return name in inspect.signature(TaskType.using).parameters


def mentions(pattern: str) -> bool:
    """Whether the package has this in its source."""
    return any(re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE) for path in SOURCE.rglob("*.py"))


def has_command(*path: str) -> bool:
    command = main
    for name in path:
        found = command.get_command(None, name)  # type: ignore[arg-type]
        if found is None:
            return False
        command = found  # type: ignore[assignment]
    return True


CHECKS: dict[str, Callable[[], bool]] = {
    "stores": lambda: all((SOURCE / "stores" / name).is_dir() for name in ("sqlite", "redis", "postgres")),
    "server needed to begin": lambda: DEFAULT_URL.startswith("sqlite:"),
    "when a task is acknowledged": lambda: (
        {state for (state, _), to in TRANSITIONS.items() if to is State.SUCCEEDED} == {State.CLAIMED}
    ),
    "worker killed during a task": lambda: TRANSITIONS[State.CLAIMED, Event.REQUEUE] is State.READY,
    "retries by default": lambda: (
        default(Retry, "max_attempts") == 5 and duration_ms(str(default(Retry, "base"))) == 30_000
    ),
    "arguments": lambda: not mentions(r"^\s*(?:import|from) (?:pickle|dill|cloudpickle|marshal)\b"),
    "`enqueue` is type-checked": lambda: "P.args" in (SOURCE / "producer" / "task_type.py").read_text("utf-8"),
    "`async def` tasks": lambda: hasattr(TaskType, "aenqueue"),
    "periodic tasks": lambda: hasattr(Holdfast, "cron") and hasattr(Holdfast, "every") and not has_command("beat"),
    "time limits": lambda: has_option("timeout") and has_option("hard_timeout"),
    "enqueue in your database transaction": lambda: has_option("transaction"),
    "idempotent enqueue": lambda: has_option("request_id"),
    "dead letters": lambda: (
        has_command("dead", "replay") and duration_ms(str(default(Holdfast, "dead_letter_ttl"))) == 14 * DAY_MS
    ),
    "other languages": lambda: has_command("server"),
    "workflows": lambda: not {"chain", "group", "chord"} & set(holdfast.__all__),
    "rate limits, unique tasks": lambda: not hasattr(Holdfast, "limit") and not has_option("unique"),
    "dashboard": lambda: not any((SOURCE / "server").rglob("*.html")),
    "first release": lambda: __version__ == "0.1.0" and "## [0.1" not in (ROOT / "CHANGELOG.md").read_text(),
}


@pytest.mark.parametrize("row", CHECKS)
def test_what_the_comparison_says_about_holdfast_is_so(row: str) -> None:
    assert CHECKS[row](), f"{row}: change the table, and this check with it"


def test_every_row_of_the_comparison_is_checked() -> None:
    assert set(table("docs/comparison.md")) == set(CHECKS)


def test_the_numbers_of_the_comparison_are_those_of_the_checks() -> None:
    rows = table("docs/comparison.md")
    assert rows["retries by default"][0] == "5 attempts, backoff from 30 s"
    assert rows["dead letters"][0] == "kept 14 days, replay"


def test_the_table_of_the_readme_is_a_part_of_the_comparison() -> None:
    full = table("docs/comparison.md")
    short = table("README.md")
    assert short
    assert {row: cells for row, cells in short.items() if full.get(row) != cells} == {}
