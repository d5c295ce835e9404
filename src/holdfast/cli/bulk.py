"""Bulk actions: what is chosen, how fast, and only when meant."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from holdfast.admin import actions
from holdfast.admin.actions import BulkResult, MakeChange, Pace, refusal
from holdfast.admin.inspect import several
from holdfast.cli import options, output
from holdfast.cli.listing import say_unknown_names, whole_ids
from holdfast.cli.main import one_line
from holdfast.cli.options import with_store
from holdfast.core.lifecycle import Verdict
from holdfast.core.task import State
from holdfast.errors import HoldfastError, NotGenuine, UsageError
from holdfast.stores.contract import Query, Store


def change_named(
    url: str,
    task_ids: Sequence[str],
    change: Callable[[Store, Sequence[str]], Awaitable[list[Verdict]]],
    *,
    dead: bool = False,
) -> tuple[Sequence[str], list[Verdict]]:
    """Makes the change to these tasks, each named by its id or its beginning; the ids and the verdicts."""

    async def find_and_change(store: Store) -> tuple[Sequence[str], list[Verdict]]:
        found = await whole_ids(store, task_ids, dead=dead)
        return found, await change(store, found)

    return with_store(url, find_and_change, must_exist=True)


def copy_named(
    url: str,
    task_ids: Sequence[str],
    copied: Callable[[Store, str], Awaitable[str]],
    said: str,
    as_json: bool,
    *,
    dead: bool = False,
) -> int:
    """Makes a new task of each of these and prints its id, refusals on stderr; the exit code is 1 after a refusal."""

    async def copy_each(store: Store) -> list[tuple[str, str | HoldfastError]]:
        answers: list[tuple[str, str | HoldfastError]] = []
        for task_id in await whole_ids(store, task_ids, dead=dead):
            try:
                answers.append((task_id, await copied(store, task_id)))
            except (UsageError, NotGenuine) as error:  # of this task; the others may be fine
                answers.append((task_id, error))
        return answers

    answers = with_store(url, copy_each, must_exist=True)
    done = {old: new for old, new in answers if isinstance(new, str)}
    if as_json:
        output.document([{"task_id": new, "copy_of": old} for old, new in done.items()])
    for old, new in answers:
        if isinstance(new, HoldfastError):
            click.echo(f"holdfast: {one_line(str(new))}", err=True)
        elif not as_json:
            output.line(f"{old} {said} {new}")
    return 0 if len(done) == len(answers) else 1


def report(
    task_ids: Sequence[str],
    verdicts: Sequence[Verdict],
    verb: str,
    as_json: bool,
    say: Callable[[Verdict], str],
) -> int:
    """Prints one line a task, refusals on stderr; the exit code is 1 if any was refused."""
    if as_json:
        pairs = zip(task_ids, verdicts, strict=True)
        output.document([{"task_id": task_id, **_view(verdict)} for task_id, verdict in pairs])
    for task_id, verdict in zip(task_ids, verdicts, strict=True):
        error = refusal(task_id, verdict, verb)
        if error is not None:
            click.echo(f"holdfast: {one_line(str(error))}", err=True)
        elif not as_json:
            output.line(f"{task_id} {say(verdict)}")
    return 0 if all(verdict.applied for verdict in verdicts) else 1


def _view(verdict: Verdict) -> dict[str, object]:
    return {"applied": verdict.applied, "repeated": verdict.repeated, "state": verdict.state, "reason": verdict.reason}


# -- bulk ----------------------------------------------------------------------------------------------------


def can_ask() -> bool:
    """Whether a user can answer a question: stdin is a terminal."""
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
            raise click.UsageError("--all needs --yes without a terminal")

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
    click.option("--all", "all", is_flag=True, help="Select all tasks that match, instead of task ids."),
    click.option("--queue", type=options.queue, help="With --all: only tasks of this queue."),
    click.option("--type", "task_type", type=options.task_type, help="With --all: only tasks of this type."),
)
_AFTER = (
    click.option("--rate", type=float, help="With --all: change at most this many tasks per second."),
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        default=100_000,
        show_default=True,
        help="With --all: change at most this many tasks.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
)

by_error = click.option("--error", "error_type", help="With --all: only tasks with this error class.")


def by_state(states: Collection[State]) -> Callable[[Any], Any]:
    """Narrows a bulk action to tasks in some of these states."""
    chosen = [state for state in State if state in states]
    text = f"With --all: only tasks in this state: {', '.join(chosen)}; repeatable."
    kind = options.StateChoice(chosen)
    return click.option("--state", "states", multiple=True, type=kind, metavar="STATE", help=text)


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

    matching = with_store(url, count, must_exist=True, in_part=True)
    if not matching:
        with_store(url, lambda store: say_unknown_names(store, query), in_part=True)
    question = f"{words.verb.capitalize()} {several(matching, words.noun)}?"
    if matching and not bulk.yes and not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")
    with output.progress_bar(words.done, matching) as progress:

        async def change(store: Store) -> BulkResult:
            return await actions.in_bulk(store, query, make_change, limit=bulk.limit, pace=pace, progress=progress)

        result = with_store(url, change, in_part=True)
    if as_json:
        told = {"running": result.running} if words.tells else {}
        output.document({"matched": result.matched, words.done: result.changed, **told})
    else:
        told_text = f", {result.running:,} of them running and being told to stop" if result.running else ""
        output.line(f"{words.done} {several(result.changed, words.noun)}{told_text}")
    if result.matched >= bulk.limit:
        output.chatter(f"There may be more: --limit is {bulk.limit:,}.")
