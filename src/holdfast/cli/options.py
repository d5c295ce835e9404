"""Options and parameter types that the commands share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.main import one_line
from holdfast.core.durations import duration_ms
from holdfast.core.ids import check_task_id
from holdfast.core.names import check_queue, check_type, size_bytes, suggestion
from holdfast.core.task import State
from holdfast.errors import StoreUnavailable, UnknownTask
from holdfast.runtime.loops import plain_loop
from holdfast.stores.contract import Store

DEFAULT_URL = "sqlite:///holdfast.db"

#: The beginning of a task_id; shorter ones are too many tasks: `admin.search.SHORTEST_PREFIX`.
_PREFIX = re.compile(r"[0-9a-fA-F]{6,31}", re.ASCII)
_TOO_SHORT = re.compile(r"[0-9a-fA-F]{1,5}", re.ASCII)
#: What to do about a database that does not exist, unless the command knows better.
_CREATE_ADVICE = "enqueue a task, run `holdfast migrate`, or fix --url"
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")

url_option = click.option(
    "--url",
    envvar="HOLDFAST_URL",
    default=DEFAULT_URL,
    show_default=True,
    metavar="URL",
    help="Store URL; also read from HOLDFAST_URL.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def app_option(text: str) -> Callable[[_Function], _Function]:
    """`--app`, also read from HOLDFAST_APP; `text` says what the command does with it."""
    return click.option(
        "--app",
        "app_reference",
        envvar="HOLDFAST_APP",
        metavar="MODULE:APP",
        help=f"{text} Also read from HOLDFAST_APP.",
    )


def store_options(function: _Function) -> _Function:
    """`--url` and `--json`."""
    return url_option(json_option(function))


def log_options(function: _Function) -> _Function:
    """`--log-level`, `--log-format` and `--json`, of commands that log until they are stopped."""
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Log messages of this level and above to stderr.",
    )
    log_format = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Log plain text, or one JSON object per line.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Same as --log-format json.")
    return level(log_format(as_json(function)))


def with_store(
    url: str,
    action: Callable[[Store], Awaitable[_Answer]],
    *,
    must_exist: bool = False,
    in_part: bool = False,
    advice: str = _CREATE_ADVICE,
) -> _Answer:
    """Opens the store, runs the action on a new event loop, and closes the store whatever happens.

    `must_exist` is for commands that need something in the store: a misspelt URL must not become a new, empty database;
    `advice` then says what to do. `in_part` is for what makes sense without some of the partitions: those that do not
    answer are named, and the exit code is 1.
    """
    from holdfast.stores.capabilities import PartialView
    from holdfast.stores.capabilities import in_part as view_in_part
    from holdfast.stores.open import open_store

    if must_exist:
        _refuse_missing(url, advice)

    async def run() -> _Answer:
        store = open_store(url)
        view = view_in_part(store, until_deadline=True) if in_part else PartialView(store, {})
        try:
            return await action(view.store)
        finally:
            await store.close()
            if view.left_out:
                _warn_of(view.left_out)

    with asyncio.Runner(loop_factory=plain_loop()) as runner:
        return runner.run(run())


def _warn_of(away: Mapping[int, StoreUnavailable]) -> None:
    """Names the partitions that did not answer, and has the command end with 1 when it has shown the rest."""
    context = click.get_current_context()
    named: set[int] = context.meta.setdefault("holdfast.left_out", set())  # a command may look first, and then act
    for partition in sorted(away.keys() - named):
        click.echo(f"holdfast: partition {partition} is left out: {one_line(str(away[partition]))}", err=True)
    if not named:
        context.call_on_close(_fail)
    named.update(away)


def _fail() -> None:
    raise click.exceptions.Exit(1)


def duration_type(option: str) -> Callable[[str], int]:
    """Reads `250ms`, `30s`, `10m` as milliseconds; a `BadDuration` names the option."""

    def duration(value: str) -> int:
        return duration_ms(value, option)

    return duration


def size_type(option: str) -> Callable[[str], int]:
    """Reads `400MB`, `2G` as bytes; a `BadOption` names the option."""

    def size(value: str) -> int:
        return size_bytes(value, option)

    return size


def time(value: str) -> int:
    """Reads an ISO 8601 time with its offset as milliseconds since the epoch."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time; write 2030-01-31T09:00:00+01:00") from None
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone; add Z or an offset such as +01:00")
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise click.BadParameter(f"{value!r} is before 1970")
    return milliseconds


def task_id(value: str) -> str:
    """Reads a task_id or its beginning; what cannot be one is a wrong call, not an unknown task."""
    if _PREFIX.fullmatch(value):
        return value
    if _TOO_SHORT.fullmatch(value):
        raise click.BadParameter(f"{value!r} is too short for a task_id: write at least its first 6 digits")
    try:
        return check_task_id(value)
    except UnknownTask as error:
        raise click.BadParameter(str(error)) from None


class StateChoice(click.Choice[str]):
    """The name of a state; a name that is none of them is refused with the one that it looks like."""

    def __init__(self, states: Iterable[State]) -> None:
        super().__init__([state.value for state in states])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Reads the name."""
        if value not in self.choices and (hint := suggestion(str(value), self.choices)):
            self.fail(f"{value!r} is not one of {', '.join(self.choices)}; {hint}", param, ctx)
        return str(super().convert(value, param, ctx))


def queue(value: str) -> str:
    """Reads the name of a queue."""
    return check_queue(value)


def task_type(value: str) -> str:
    """Reads the name of a task type."""
    return check_type(value)


def iso_time(milliseconds: int | None) -> str:
    """The time in UTC, to the millisecond; empty for None."""
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def missing_file(url: str) -> Path | None:
    """The first SQLite file of the URL that does not exist yet; None if all do, or none is named."""
    from holdfast.stores.open import resolved, split_urls, sqlite_path

    paths = (sqlite_path(each) for each in split_urls(resolved(url)) if each.startswith("sqlite:"))
    return next((Path(path) for path in paths if path and not Path(path).exists()), None)


def _refuse_missing(url: str, advice: str) -> None:
    path = missing_file(url)
    if path is not None and not path.parent.is_dir():
        raise StoreUnavailable(f"there is no folder {path.parent}; fix --url, or make the folder")
    if path is not None:
        raise StoreUnavailable(f"there is no database at {path} yet; {advice}")
