"""Bulk actions: what is chosen, how fast, and only when meant."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from holdfast.admin import actions
from holdfast.admin.actions import BulkResult, MakeChange, Pace
from holdfast.admin.text import several
from holdfast.cli import options, output
from holdfast.cli.options import with_store
from holdfast.core.task import State
from holdfast.stores.contract import Query, Store


def can_ask() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin.isatty()


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a bulk action."""

    all: bool
    queue: str | None
    task_type: str | None
    rate: float | None
    limit: int
    yes: bool
    #: Of the options that not every bulk action has.
    error_type: str | None = None
    states: tuple[str, ...] = ()

    def check(self, task_ids: Sequence[str]) -> None:
        """Refuses what could be meant in two ways."""
        if self.all and task_ids:
            raise click.UsageError("give task_ids or --all, not both")
        if not self.all and not task_ids:
            raise click.UsageError("give task_ids, or --all with --queue or --type to narrow it")
        if not self.all and (self.queue or self.task_type or self.error_type or self.states or self.rate):
            raise click.UsageError("options that narrow or slow down a bulk action go with --all")
        if self.all and not self.yes and not can_ask():
            raise click.UsageError("--all needs --yes where nobody can be asked")

    def tasks_in(self, states: Collection[State]) -> Query:
        """The query for the tasks in one of these states, or in those of them that were named."""
        chosen = frozenset(State(state) for state in self.states) or frozenset(states)
        return Query(states=chosen, queue=self.queue, type=self.task_type)


class Words(NamedTuple):
    """What a bulk action says: what it does, what it has done, and to what."""

    verb: str
    done: str
    noun: str
    #: Workers may have some of the tasks, and are told.
    tells: bool = False


_BEFORE = (
    click.option("--all", "all", is_flag=True, help="All that match, instead of task_ids."),
    click.option("--queue", type=options.queue, help="With --all: only of this queue."),
    click.option("--type", "task_type", type=options.task_type, help="With --all: only of this type."),
)
_AFTER = (
    click.option("--rate", type=float, help="With --all: at most so many tasks a second."),
    click.option(
        "--limit", type=click.IntRange(min=1), default=100_000, show_default=True, help="With --all: at most."
    ),
    click.option("--yes", is_flag=True, help="Do not ask."),
)

by_error = click.option("--error", "error_type", help="With --all: only with this class of error.")


def by_state(states: Collection[State]) -> Callable[[Any], Any]:
    """Narrows a bulk action to tasks in some of these states."""
    choice = click.Choice([state.value for state in State if state in states])
    text = "With --all: only in this state; may be given several times."
    return click.option("--state", "states", multiple=True, type=choice, help=text)


def bulk_options(narrowing: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options of a bulk action, with one of its own, and hands them over as one `Bulk`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def gathered(*args: Any, **kwargs: Any) -> Any:
            chosen = {name: kwargs.pop(name) for name in Bulk.__struct_fields__ if name in kwargs}
            return function(*args, bulk=Bulk(**chosen), **kwargs)

        for option in reversed((*_BEFORE, narrowing, *_AFTER)):
            gathered = option(gathered)
        return gathered

    return add


def change_all(url: str, bulk: Bulk, query: Query, make_change: MakeChange, words: Words, as_json: bool) -> None:
    """Asks if need be, changes all that match, and prints how many."""
    pace = Pace(bulk.rate)

    async def count(store: Store) -> int:
        return await actions.count_matching(store, query, bulk.limit)

    matching = with_store(url, count, must_exist=True)
    question = f"{words.verb.capitalize()} {several(matching, words.noun)}?"
    if matching and not bulk.yes and not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")
    with output.progress_bar(words.done, matching) as progress:

        async def change(store: Store) -> BulkResult:
            return await actions.in_bulk(store, query, make_change, limit=bulk.limit, pace=pace, progress=progress)

        result = with_store(url, change)
    if as_json:
        told = {"running": result.running} if words.tells else {}
        output.document({"matched": result.matched, words.done: result.changed, **told})
    else:
        told_text = f", {result.running:,} of them running and being told to stop" if result.running else ""
        output.line(f"{words.done} {several(result.changed, words.noun)}{told_text}")
    if result.matched >= bulk.limit:
        output.chatter(f"There may be more: --limit is {bulk.limit:,}.")
