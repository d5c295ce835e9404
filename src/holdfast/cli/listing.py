"""What listings have in common: filters by time, error and argument, `--watch`, and ids by their beginning."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import click

from holdfast.admin.inspect import queue_table, several
from holdfast.admin.search import Filter, Found, argument, error_class, whole_id
from holdfast.cli import options, output
from holdfast.clock import SystemClock
from holdfast.core.durations import duration_ms, format_ms
from holdfast.core.names import suggestion
from holdfast.core.task import State
from holdfast.errors import HoldfastError
from holdfast.stores.contract import MAX_BATCH, Query, Store

_DEFAULT_WATCH: Final = "2s"
#: The shortest time between two looks of `--watch`.
_FASTEST_WATCH_MS: Final = 200
#: From the top left corner on: the lines are written over those that were there, and the rest is cleared.
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR: Final = "\x1b[2J"


# -- filters -------------------------------------------------------------------------------------------------


def moment_type(option: str) -> Callable[[str], int]:
    """Reads an ISO 8601 time, or how long ago (`90s`, `2h`, `7d`), as milliseconds since the epoch."""

    def moment(value: str) -> int:
        if value[:1].isdigit() and "-" not in value:
            return SystemClock().now_ms() - duration_ms(value, option)
        return options.time(value)

    return moment


_SEARCH: Final = (
    click.option("--queue", type=options.queue, help="Only tasks of this queue."),
    click.option("--type", "task_type", type=options.task_type, help="Only tasks of this type."),
    click.option("--error", "error", help="Only tasks whose last attempt failed with this class, such as ValueError."),
    click.option(
        "--arg",
        "args",
        type=argument,
        multiple=True,
        metavar="KEY=VALUE",
        help="Only tasks with this argument, such as user_id=7 or user.name=joe; repeatable.",
    ),
    click.option(
        "--limit", type=click.IntRange(1, MAX_BATCH), metavar="N", default=50, show_default=True, help="Tasks per page."
    ),
    click.option("--cursor", help="Continue after this cursor, printed with the previous page."),
)


def search_options(what: str, time_of: Literal["created", "finished"]) -> Callable[[Callable[..., Any]], Any]:
    """Adds the options of a search, and hands them over as one `Query` and one `Filter`.

    `--since` and `--until` are about when tasks `what` ("died").
    """
    when = f"Only tasks that {what} at this time or later: 2h (ago) or 2030-01-31T09:00Z."
    since = click.option("--since", type=moment_type("--since"), metavar="TIME", help=when)
    until = click.option(
        "--until", type=moment_type("--until"), metavar="TIME", help=f"Only tasks that {what} before this time."
    )

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def gathered(
            *,
            queue: str | None,
            task_type: str | None,
            error: str | None,
            args: Sequence[tuple[str, Any]],
            since: int | None,
            until: int | None,
            limit: int,
            cursor: str | None,
            **rest: Any,
        ) -> Any:
            if since is not None and until is not None and since >= until:
                raise click.UsageError("--since must be before --until")
            given = Filter(since_ms=since, until_ms=until, time=time_of, args=dict(args))
            error = error_class(error) if error else None
            query = Query(queue=queue, type=task_type, error_type=error, limit=limit, cursor=cursor)
            return function(query=query, given=given, **rest)

        for option in reversed((*_SEARCH[:3], since, until, *_SEARCH[3:])):
            gathered = option(gathered)
        return gathered

    return add


async def say_unknown_names(store: Store, query: Query) -> None:
    """Says, where nothing matched, that no queue or no worker's task type has the name that was asked for."""
    if query.queue is not None:
        queues = {"default", *(row.queue for row in await queue_table(store))}
        if query.queue not in queues:
            hint = suggestion(query.queue, queues)
            output.chatter(f"There is no queue {query.queue}{f': {hint}' if hint else '.'}")
    if query.type is not None:
        types = {name for worker in await store.workers() for name in worker.types}
        if query.type not in types and (hint := suggestion(query.type, types)):
            output.chatter(f"No worker knows the type {query.type}: {hint}")


def page_facts(found: Found) -> dict[str, object]:
    """What the JSON form says of a page beside its tasks."""
    return {"cursor": found.cursor, "looked_at": found.looked_at, "cut_short": found.cut_short}


def end_of_page(found: Found) -> None:
    """Says whether there is more, and whether the search ended before it had compared all tasks."""
    if found.encrypted:
        output.chatter(f"{several(found.encrypted, 'task')} with encrypted arguments could not be compared.")
    if found.cut_short:
        looked = several(found.looked_at, "task")
        output.chatter(f"The search ended after {looked}; to search on: --cursor {found.cursor}")
    elif found.cursor:
        output.chatter(f"There are more: --cursor {found.cursor}")


# -- watch ---------------------------------------------------------------------------------------------------


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--watch`: the listing is shown again and again until Ctrl-C."""

    @functools.wraps(function)
    def shown(*args: Any, **kwargs: Any) -> Any:
        every = kwargs.pop("watch")
        if every is None:
            return function(*args, **kwargs)
        if kwargs.get("as_json") or not output.at_terminal():
            raise click.UsageError("--watch needs a terminal, and does not go with --json")
        _watch(functools.partial(function, *args, **kwargs), max(_FASTEST_WATCH_MS, duration_ms(every, "--watch")))
        return None

    text = f"Show the listing again every TIME until Ctrl-C. [default: {_DEFAULT_WATCH}]"
    return click.option("--watch", is_flag=False, flag_value=_DEFAULT_WATCH, metavar="[TIME]", help=text)(shown)


def _watch(show: Callable[[], Any], every_ms: int) -> None:
    click.echo(_CLEAR, nl=False)
    try:
        while True:
            with output.held_back() as lines:
                try:
                    show()
                except HoldfastError as error:  # the store may be back when it is looked at again
                    lines.append(str(error))
            _draw(lines, every_ms)
            time.sleep(every_ms / 1000)
    except KeyboardInterrupt:
        click.echo()


def _draw(lines: Sequence[str], every_ms: int) -> None:
    height = max(3, shutil.get_terminal_size().lines)
    shown = [f"{datetime.now().astimezone():%H:%M:%S}, every {format_ms(every_ms)}; Ctrl-C ends", *lines]
    if len(shown) >= height:
        shown = [*shown[: height - 2], f"… {len(shown) - height + 2} more lines"]
    text = "".join(f"{line}{_CLEAR_LINE}\n" for line in shown)
    click.echo(_HOME + text + _CLEAR_REST, nl=False, color=True)


# -- ids -----------------------------------------------------------------------------------------------------


async def whole_ids(store: Store, texts: Sequence[str], *, dead: bool = False) -> tuple[str, ...]:
    """The ids that begin with these texts, of dead letters or of all tasks."""
    query = Query(states=frozenset({State.DEAD_LETTERED})) if dead else None
    return tuple([await whole_id(store, text, query, "dead letter" if dead else "task") for text in texts])
