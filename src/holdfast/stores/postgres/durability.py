"""How a call becomes as durable as the level says: the statement, and the wait for standbys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.stores.connections import LONGEST_TRY_SECONDS, Deadline
from holdfast.stores.postgres.connection import Connection, NoStandbys, Unconfirmed
from holdfast.stores.postgres.urls import Durability, PostgresSettings

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Session


#: `local`: on the disk of the primary; survives its crash, not its loss.
#: `replicated`: also on the disk of the standbys in `synchronous_standby_names`; survives the loss of the primary if
#: one of those is promoted. A server that names none, as Patroni has it when the last standby leaves, goes on alone.
#: `strict`: the same, and refused when the call begins on a server that names none. Only a server that never gives up
#: its standbys by itself (Patroni: `synchronous_mode_strict`) keeps the promise through a change during the call.
_COMMITS: Final[dict[Durability, str]] = {"local": "local", "replicated": "on", "strict": "on"}

_PLAIN: Final = "SELECT * FROM {schema}.{function}({marks})"
#: A commit waits for a standby only if it has written something. A repeat that finds its work done must wait too: for
#: the standby to have all that came before this connection in the log, the work of the first try included.
_MARK: Final = "pg_logical_emit_message(true, 'holdfast', '')"
#: The level is set in the same statement, for its transaction only: one round trip, and safe behind a pooler. The outer
#: join has the setting made first, even if the function returns nothing, which its missing ordinality tells.
_LEVELLED: Final = """
WITH level AS MATERIALIZED (
    SELECT set_config('synchronous_commit', '{commit}', true), set_config('client_min_messages', 'warning', true),
           set_config('lock_timeout', '{lock_timeout}', true){mark}
    {condition}
)
SELECT answer.* FROM level LEFT JOIN LATERAL {schema}.{function}({marks}) WITH ORDINALITY AS answer ON true
"""
_HAS_STANDBYS: Final = "WHERE current_setting('synchronous_standby_names') <> ''"
_BEGINNING: Final = f"""
SELECT current_setting('synchronous_standby_names'), set_config('client_min_messages', 'warning', true),
       set_config('synchronous_commit', %s, true), set_config('lock_timeout', %s, true),
       CASE WHEN %s THEN {_MARK} END
"""


class Statements:
    """The statements of one database, made once each."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._schema = settings.quoted_schema
        self._level = settings.durability
        self._lock_timeout_ms = settings.lock_timeout_ms
        self._made: dict[tuple[str, int, bool], str] = {}

    def may_wait(self, safe: bool) -> bool:
        """Whether such a call may have to wait for a standby."""
        return safe and self._level != "local"

    async def call(
        self, connection: Connection, function: str, arguments: tuple[Any, ...], safe: bool
    ) -> list[tuple[Any, ...]]:
        """One call of the function on this connection; what was not as durable as it must be is raised."""
        levelled = safe and (self._level != "local" or connection.pooled)
        key = (function, len(arguments), levelled)
        statement = self._made.get(key)
        if statement is None:
            statement = self._made[key] = self._make(function, len(arguments), levelled)
        rows = await connection.ask(statement, arguments)
        return _answers(rows) if levelled else rows

    async def begin(self, connection: Connection, *, waits_long: bool = False) -> None:
        """At the start of a transaction: its commit will be as durable as the level says.

        `waits_long` is for transactions that are not repeated: they wait for locks as long as their caller does.
        """
        lock_timeout_ms = 0 if waits_long else self._lock_timeout_ms
        ((standbys, *_),) = await connection.ask(
            _BEGINNING, (_COMMITS[self._level], str(lock_timeout_ms), self._level != "local")
        )
        if self._level == "strict" and not standbys:
            raise NoStandbys

    def _make(self, function: str, count: int, levelled: bool) -> str:
        text = _LEVELLED if levelled else _PLAIN
        return text.format(
            schema=self._schema,
            function=function,
            marks=", ".join(["%s"] * count),
            commit=_COMMITS[self._level],
            mark="" if self._level == "local" else f", {_MARK}",
            lock_timeout=self._lock_timeout_ms,
            condition=_HAS_STANDBYS if self._level == "strict" else "",
        )


def _answers(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    if not rows:
        raise NoStandbys
    if rows[0][-1] is None:
        return []
    return [row[:-1] for row in rows]


T = TypeVar("T")

#: So old may the knowledge be which backends wait.
_KNOWN_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 1.0
_WAITING: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND wait_event = 'SyncRep'
"""


class Standbys:
    """The waiting of one event loop.

    A backend that waits for a standby goes on even if we close the connection. So what is not confirmed in time is left
    behind with its connection, which bounds how many there can be; the rest of the connections stay free for others.
    """

    def __init__(self, session: Session, room: int) -> None:
        self._session = session
        self._room = asyncio.Semaphore(room)
        self._left_behind: set[asyncio.Task[object]] = set()
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        self._backends: frozenset[int] = frozenset()

    async def confirm(self, exchange: Callable[[Connection], Awaitable[T]], deadline: Deadline) -> T:
        """One try; longer while bytes move, or while the server says that it waits for a standby, until time is up."""
        connections: list[Connection] = []
        trying = asyncio.create_task(self._try(exchange, connections))
        begun = self._session.loop.time()
        try:
            while not (await asyncio.wait([trying], timeout=(seconds := deadline.for_a_try())))[0]:
                now = self._session.loop.time()
                if connections and connections[0].movement.at > now - seconds and now - begun < LONGEST_TRY_SECONDS:
                    continue
                if not await self.are_awaited(connections):
                    raise TimeoutError
                if deadline.is_over():
                    raise Unconfirmed("no standby has confirmed it in time")
            return trying.result()
        except BaseException as error:
            self._leave(trying, ended=not (connections and isinstance(error, Unconfirmed)))
            raise

    async def are_awaited(self, connections: list[Connection]) -> bool:
        """Whether one of our statements (on this connection, if we know it) is kept from its end by a standby."""
        async with self._looking:
            if self._session.loop.time() - self._looked_at > _KNOWN_SECONDS:
                self._backends = await self._look()
                self._looked_at = self._session.loop.time()
        if connections and not connections[0].pooled:
            return connections[0].info.backend_pid in self._backends
        return bool(self._backends)

    async def _try(self, exchange: Callable[[Connection], Awaitable[T]], connections: list[Connection]) -> T:
        async with self._room, self._session.connection() as connection:
            connections.append(connection)
            return await exchange(connection)

    async def _look(self) -> frozenset[int]:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                connection = await self._session.finder.connect()
                try:
                    return frozenset(backend for (backend,) in await connection.ask(_WAITING))
                finally:
                    connection.drop()
        except Exception:  # noqa: BLE001  (who cannot be asked does not say that it waits)
            return frozenset()

    def _leave(self, trying: asyncio.Task[T], *, ended: bool) -> None:
        self._left_behind.add(trying)
        trying.add_done_callback(self._forget)
        if ended:
            trying.cancel()

    def _forget(self, trying: asyncio.Task[T]) -> None:
        self._left_behind.discard(trying)
        if not trying.cancelled():
            trying.exception()  # its caller has gone
