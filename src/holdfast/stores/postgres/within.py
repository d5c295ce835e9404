"""Tasks in a caller's transaction: they exist if it commits, and never if it does not.

The caller's connection runs one statement of ours. The schema and the wake-ups, which must not be in that transaction,
have connections of their own.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import BadOption, HoldfastError, StoreError, StoreUnavailable
from holdfast.stores.capabilities import Background, Transaction
from holdfast.stores.postgres import answers
from holdfast.stores.postgres.arguments import headers_text, policy_text
from holdfast.stores.postgres.drivers import AsyncCaller, Caller, Row, caller_of

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Database

_NOT_THERE: Final = frozenset({"3F000", "42883"})
_NOT_ALLOWED: Final = "42501"


class PostgresWithin:
    """The transactions that a store takes part in."""

    def __init__(
        self,
        database: Database,
        call: Callable[..., Awaitable[list[tuple[Any, ...]]]],
        now: Callable[[], int | None],
    ) -> None:
        self._database = database
        self._function = f"{database.settings.quoted_schema}.enqueue_within"
        self._call = call
        self._now = now
        self._home: str | None = None

    def enqueue(self, transaction: Transaction, tasks: Sequence[NewTask], background: Background) -> list[Enqueued]:
        """Records tasks in a sync transaction."""
        caller = _sync(caller_of(transaction))
        home = self._home or background.run(self._ask_home())
        with self._in_our_words():
            rows = caller.ask(self._function, self._text(home, tasks))
        if _is_elsewhere(rows) and home != (home := background.run(self._ask_home())):
            with self._in_our_words():
                rows = caller.ask(self._function, self._text(home, tasks))
        return self._answers(caller, tasks, rows, background)

    async def aenqueue(
        self, transaction: Transaction, tasks: Sequence[NewTask], background: Background
    ) -> list[Enqueued]:
        """Records tasks in an async transaction."""
        caller = _async(caller_of(transaction))
        home = self._home or await self._ask_home()
        with self._in_our_words():
            rows = await caller.aask(self._function, self._text(home, tasks))
        if _is_elsewhere(rows) and home != (home := await self._ask_home()):
            with self._in_our_words():
                rows = await caller.aask(self._function, self._text(home, tasks))
        return self._answers(caller, tasks, rows, background)

    async def _ask_home(self) -> str:
        """Which store ours is, by a connection of our own, which also makes the schema if need be."""
        [(home,)] = await self._call("home")
        self._home = home
        return str(home)

    def _text(self, home: str, tasks: Sequence[NewTask]) -> str:
        """All in plain ASCII, since we do not know the encoding of their connection."""
        level = self._database.settings.durability
        rows = [_row(task) for task in tasks]
        return json.dumps({"now": self._now(), "map_version": 0, "home": home, "level": level, "tasks": rows})

    def _answers(
        self, caller: Caller | AsyncCaller, tasks: Sequence[NewTask], rows: Sequence[Row], background: Background
    ) -> list[Enqueued]:
        url = self._database.url
        if _is_elsewhere(rows):
            raise self._wrong_database("has a store of its own")
        if rows and rows[0][0] == "no_standbys":
            raise StoreUnavailable(
                f"{url}: no synchronous standby, without which durability=strict writes nothing; start one"
            )
        enqueued, wakeups = answers.recorded(url, tasks, rows)
        if wakeups:
            caller.after_commit(NotifyAfterCommit(self._database, background, frozenset(wakeups)))
        return enqueued

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        """Mistakes are explained; all else is between the caller and its driver, and raised as it is."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            explained = self._explained(error)
            if explained is None:
                raise
            raise explained from None

    def _explained(self, error: Exception) -> HoldfastError | None:
        code, words = _from_server(error)
        schema = self._database.settings.schema
        if code in _NOT_THERE:
            return self._wrong_database(f"has no schema {schema!r} of this version of Holdfast")
        if code == _NOT_ALLOWED:
            return StoreError(
                f"{self._database.url}: {words}; GRANT USAGE ON SCHEMA {schema} to the role of your session"
            )
        return None

    def _wrong_database(self, finding: str) -> BadOption:
        return BadOption(
            f"transaction: it is not in the database of {self._database.url}, but in one that {finding}; use a session "
            "of the store's own database"
        )


@dataclass(frozen=True)
class NotifyAfterCommit:
    """Sends these wake-ups; two with the same are one."""

    database: Database
    background: Background
    wakeups: frozenset[str]

    def __call__(self, *, delay_s: float = 0) -> None:
        """From the running event loop, or from that in the background if the caller has none."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._in_background(delay_s)
        else:
            loop.call_later(delay_s, self.database.notify, self.wakeups)

    def _in_background(self, delay_s: float) -> None:
        sending = self._after(delay_s)
        try:
            self.background.start(sending)
        except RuntimeError:
            # The process or the app is about to end: the commit has happened, and must not seem to have failed.
            sending.close()

    async def _after(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self.database.notify(self.wakeups)


def _row(task: NewTask) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "type": task.type,
        "queue": task.queue,
        "payload": b64encode(task.payload).decode(),
        "headers": headers_text(task.headers),
        "policy": policy_text(task.policy),
        "request_id": task.request_id,
        "priority": task.priority,
        "delay_ms": task.delay_ms,
        "run_at_ms": task.run_at_ms,
    }


def _is_elsewhere(rows: Sequence[Row]) -> bool:
    return bool(rows) and rows[0][0] == "elsewhere"


def _sync(caller: Caller | AsyncCaller) -> Caller:
    if isinstance(caller, AsyncCaller):
        raise BadOption("transaction: it is an async one; write: await ….aenqueue(…)")
    return caller


def _async(caller: Caller | AsyncCaller) -> AsyncCaller:
    if not isinstance(caller, AsyncCaller):
        raise BadOption(
            "transaction: it is a sync one; write ….enqueue(…) in the function that makes the other writes of it"
        )
    return caller


def _from_server(error: BaseException) -> tuple[str | None, str]:
    """SQLSTATE and words of the server, however the libraries between have wrapped them."""
    for each in _layers(error):
        code = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if code is not None:
            return str(code), str(each).partition("\n")[0]
    return None, str(error)


def _layers(error: BaseException) -> Iterable[BaseException]:
    return [each for each in (getattr(error, "orig", None), error.__cause__, error) if each is not None]
