"""Searching: tasks by time and argument, and by the beginning of their id.

A store finds tasks by state, queue, type and error class. What it cannot answer by an index is compared here, task by
task, newest first, and never more than `SCAN_LIMIT` of them: a search that ends there says so, and gives the cursor.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import check_task_id
from holdfast.core.payload import is_encrypted
from holdfast.core.task import Task
from holdfast.errors import BadOption, UnknownTask
from holdfast.stores.contract import MAX_BATCH, Page, Query, Store

#: How many tasks one search compares at most.
SCAN_LIMIT: Final = 50_000
#: How many pages one search asks the store for at most: a page may end early, without a task.
_PAGE_LIMIT: Final = 500
#: How many tasks are looked at, newest first, for one whose id begins like that.
PREFIX_LIMIT: Final = 20_000
#: The fewest digits of an id that are looked up: 8 of them are about a minute.
SHORTEST_PREFIX: Final = 6
#: Tasks are listed by the store's clock, ids are made by the producer's: they may differ by this much.
_CLOCK_SLACK_MS: Final = 600_000
#: At most this many matches of an ambiguous id are named.
_NAMED: Final = 3
_PREFIX = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
_MISSING: Final = object()


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared with each task that the store finds; what is not given does not restrict."""

    #: From this time on, in milliseconds since 1970.
    since_ms: int | None = None
    #: Before this time.
    until_ms: int | None = None
    #: Which time of the task is compared.
    time: Literal["created", "finished"] = "created"
    #: Arguments by name, `user.id` for one inside of another, and the value that each must have.
    args: Mapping[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        """Whether every task passes."""
        return self.since_ms is None and self.until_ms is None and not self.args

    def fits(self, task: Task) -> bool:
        """Whether the task passes; one whose arguments are encrypted has none to compare."""
        at_ms = task.created_at_ms if self.time == "created" else task.finished_at_ms
        if self.since_ms is not None and (at_ms is None or at_ms < self.since_ms):
            return False
        if self.until_ms is not None and (at_ms is None or at_ms >= self.until_ms):
            return False
        return not self.args or _has_arguments(task.payload, self.args)

    def is_behind(self, task: Task) -> bool:
        """Whether no task after this one can pass, newest first."""
        if self.since_ms is None or self.time != "created":
            return False
        return task.created_at_ms < self.since_ms - _CLOCK_SLACK_MS


class Found(msgspec.Struct, frozen=True):
    """A page of tasks without history, and how far the search came."""

    tasks: list[Task]
    #: Where to go on; None if there is nothing more.
    cursor: str | None
    #: For each task, the cursor of what comes after it.
    after: list[str]
    #: How many tasks were compared.
    looked_at: int
    #: How many of them could not be compared because their arguments are encrypted.
    encrypted: int = 0
    #: Whether the search ended because it had compared `SCAN_LIMIT` tasks.
    cut_short: bool = False

    @property
    def page(self) -> Page:
        """The same as the page of a store."""
        return Page(self.tasks, self.cursor, self.after)


async def search(store: Store, query: Query, given: Filter | None = None, scan_limit: int = SCAN_LIMIT) -> Found:
    """One page of the tasks that match the query and the filter, newest first; compares at most `scan_limit` tasks."""
    if not 1 <= query.limit <= MAX_BATCH:
        raise BadOption(f"limit {query.limit} is refused: a page has 1 to {MAX_BATCH:,} tasks")
    given = given or Filter()
    tasks: list[Task] = []
    after: list[str] = []
    cursor = query.cursor
    looked_at = encrypted = pages = 0
    while looked_at < scan_limit and pages < _PAGE_LIMIT:
        wanted = query.limit - len(tasks) if given.is_empty else MAX_BATCH
        page = await store.find(replace(query, limit=min(wanted, scan_limit - looked_at), cursor=cursor))
        pages += 1
        for task, place in zip(page.tasks, page.after, strict=True):
            if given.is_behind(task):
                return Found(tasks, None, after, looked_at, encrypted)
            looked_at += 1
            encrypted += bool(given.args) and is_encrypted(task.payload)
            if given.fits(task):
                tasks.append(task)
                after.append(place)
            if len(tasks) >= query.limit:
                is_last = task is page.tasks[-1]
                return Found(tasks, page.cursor if is_last else place, after, looked_at, encrypted)
        cursor = page.cursor
        if cursor is None:
            return Found(tasks, None, after, looked_at, encrypted)
    return Found(tasks, cursor, after, looked_at, encrypted, cut_short=True)


async def every_match(store: Store, query: Query, given: Filter, limit: int) -> AsyncIterator[list[Task]]:
    """All tasks that match the query and the filter page by page, newest first, at most `limit` in all."""
    left, cursor = limit, query.cursor
    while left > 0:
        found = await search(store, replace(query, limit=min(left, MAX_BATCH), cursor=cursor), given)
        if found.tasks:
            yield found.tasks
        left, cursor = left - len(found.tasks), found.cursor
        if cursor is None:
            return


def error_class(name: str) -> str:
    """The class by which tasks are found: a bare name such as `ValueError` is a built-in one."""
    return f"builtins.{name}" if "." not in name and name[:1].isupper() else name


def argument(text: str) -> tuple[str, Any]:
    """Reads `key=value`; the value is JSON, and text if it is no JSON and does not begin like an object or a list."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadOption(f"{text[:60]!r} is not key=value; write an argument and its value, such as user_id=7")
    try:
        return key.strip(), msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        if value[:1] in ("{", "[", '"'):
            raise BadOption(f"{key.strip()}: the value is not JSON: {error}") from None
        return key.strip(), value


def _has_arguments(payload: bytes, wanted: Mapping[str, Any]) -> bool:
    if is_encrypted(payload):
        return False
    try:
        arguments = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return all(_same(_inside(arguments, key), value) for key, value in wanted.items())


def _inside(value: Any, key: str) -> Any:
    """The value under a dotted key; a key that has a dot of its own comes first."""
    if isinstance(value, dict):
        if key in value:
            return value[key]
        first, dot, rest = key.partition(".")
        return _inside(value[first], rest) if dot and first in value else _MISSING
    if isinstance(value, list):
        first, dot, rest = key.partition(".")
        if first.isascii() and first.isdecimal() and int(first) < len(value):
            return _inside(value[int(first)], rest) if dot else value[int(first)]
    return _MISSING


def _same(there: Any, wanted: Any) -> bool:
    """Equal as JSON: `true` is not 1; a text matches what was written without quotes."""
    if isinstance(there, bool) or isinstance(wanted, bool):
        return there is wanted
    return bool(there == wanted) or (isinstance(there, str) and not isinstance(wanted, str) and there == str(wanted))


# -- ids by their beginning ----------------------------------------------------------------------------------


async def whole_id(store: Store, text: str, query: Query | None = None, noun: str = "task") -> str:
    """The id of the only task (of those that match the query) whose id begins with `text`, or `UnknownTask`.

    An id of 32 digits is not looked up. For a shorter one the newest `PREFIX_LIMIT` tasks are looked at, at most: ids
    begin with the time at which they were made, so that the search ends where older tasks begin.
    """
    if len(text) >= 32:
        return check_task_id(text)
    prefix = text.lower()
    if not _PREFIX.fullmatch(prefix):
        return check_task_id(text)
    if len(prefix) < SHORTEST_PREFIX:
        raise UnknownTask(f"{text!r} is too short for a task_id: write at least {SHORTEST_PREFIX} of its 32 digits")
    oldest_ms = int(prefix[:12].ljust(12, "0"), 16) - _CLOCK_SLACK_MS
    found: list[str] = []
    looked_at, cursor = 0, None
    for _ in range(_PAGE_LIMIT):
        page = await store.find(replace(query or Query(), limit=MAX_BATCH, cursor=cursor))
        found += [task.task_id for task in page.tasks if task.task_id.startswith(prefix)]
        looked_at, cursor = looked_at + len(page.tasks), page.cursor
        is_behind = bool(page.tasks) and page.tasks[-1].created_at_ms < oldest_ms
        if cursor is None or is_behind or len(found) > _NAMED or looked_at >= PREFIX_LIMIT:
            break
    if not found:
        raise UnknownTask(_not_found(text, noun, store.url, looked_at if cursor and not is_behind else None))
    if len(found) > 1:
        named = ", ".join(found[:_NAMED]) + (", …" if len(found) > _NAMED else "")
        raise UnknownTask(f"several {noun}s begin with {text}: {named}; write more digits of the id")
    return found[0]


def _not_found(text: str, noun: str, url: str, looked_at: int | None) -> str:
    if looked_at is None:
        return f"no {noun} in {url} has an id that begins with {text}"
    return f"none of the newest {looked_at:,} {noun}s in {url} begins with {text}; write all 32 digits of an older id"
