"""Bulk actions on dead letters: what is chosen, how fast, and only when meant."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from holdfast.admin import actions
from holdfast.admin.actions import BulkResult, MakeChange, Pace
from holdfast.admin.text import several
from holdfast.cli import options, output
from holdfast.cli.options import with_store
from holdfast.stores.contract import Query, Store


def can_ask() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin.isatty()


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a bulk action."""

    all: bool
    queue: str | None
    task_type: str | None
    error_type: str | None
    rate: float | None
    limit: int
    yes: bool

    @property
    def query(self) -> Query:
        """What it is about."""
        return actions.dead_letters(self.queue, self.task_type, self.error_type)

    def check(self, task_ids: Sequence[str]) -> None:
        """Refuses what could be meant in two ways."""
        if self.all and task_ids:
            raise click.UsageError("give task_ids or --all, not both")
        if not self.all and not task_ids:
            raise click.UsageError("give task_ids, or --all with --queue, --type or --error to narrow it")
        if not self.all and (self.queue or self.task_type or self.error_type or self.rate):
            raise click.UsageError("--queue, --type, --error and --rate go with --all")
        if self.all and not self.yes and not can_ask():
            raise click.UsageError("--all needs --yes where nobody can be asked")


_OPTIONS = (
    click.option("--all", "all", is_flag=True, help="All that match, instead of task_ids."),
    click.option("--queue", type=options.queue, help="With --all: only of this queue."),
    click.option("--type", "task_type", type=options.task_type, help="With --all: only of this type."),
    click.option("--error", "error_type", help="With --all: only with this class of error."),
    click.option("--rate", type=float, help="With --all: at most so many tasks a second."),
    click.option(
        "--limit", type=click.IntRange(min=1), default=100_000, show_default=True, help="With --all: at most."
    ),
    click.option("--yes", is_flag=True, help="Do not ask."),
)


def bulk_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a bulk action and hands them over as one `Bulk`."""

    @functools.wraps(function)
    def gathered(*args: Any, **kwargs: Any) -> Any:
        bulk = Bulk(**{name: kwargs.pop(name) for name in Bulk.__struct_fields__})
        return function(*args, bulk=bulk, **kwargs)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def change_all(url: str, bulk: Bulk, make_change: MakeChange, verbs: tuple[str, str], as_json: bool) -> None:
    """Asks if need be, changes all that match, and prints how many."""
    pace = Pace(bulk.rate)

    async def count(store: Store) -> int:
        return await actions.count_matching(store, bulk.query, bulk.limit)

    matching = with_store(url, count, must_exist=True)
    question = f"{verbs[0].capitalize()} {several(matching, 'dead letter')}?"
    if matching and not bulk.yes and not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")
    with output.progress_bar(verbs[1], matching) as progress:

        async def change(store: Store) -> BulkResult:
            return await actions.in_bulk(store, bulk.query, make_change, limit=bulk.limit, pace=pace, progress=progress)

        result = with_store(url, change)
    if as_json:
        output.document({"matched": result.matched, verbs[1]: result.changed})
    else:
        output.line(f"{verbs[1]} {several(result.changed, 'dead letter')}")
    if result.matched >= bulk.limit:
        output.chatter(f"There may be more: --limit is {bulk.limit:,}.")
