"""How a call becomes a statement that is as durable as the level says."""

from __future__ import annotations

from typing import Any, Final

from holdfast.stores.postgres.lines import Line, NoStandbys
from holdfast.stores.postgres.urls import Durability, PostgresSettings

#: `local`: on the disk of the primary; survives its crash, not its loss.
#: `replicated`: also on the disk of the standbys in `synchronous_standby_names`; survives the loss of the primary if
#: one of those is promoted. A server that names none, as Patroni has it when the last standby leaves, goes on alone.
#: `strict`: the same, and refused when the call begins on a server that names none. Only a server that never gives up
#: its standbys by itself (Patroni: `synchronous_mode_strict`) keeps the promise through a change during the call.
_COMMITS: Final[dict[Durability, str]] = {"local": "local", "replicated": "on", "strict": "on"}

_PLAIN: Final = "SELECT * FROM {schema}.{function}({marks})"
#: A commit waits for a standby only if it has written something. A repeat that finds its work done must wait too: for
#: the standby to have all that came before this line in the log, the work of the first try included.
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
        self._schema = settings.schema
        self._level = settings.durability
        self._lock_timeout_ms = settings.lock_timeout_ms
        self._made: dict[tuple[str, int, bool], str] = {}

    def may_wait(self, safe: bool) -> bool:
        """Whether such a call may have to wait for a standby."""
        return safe and self._level != "local"

    async def call(self, line: Line, function: str, arguments: tuple[Any, ...], safe: bool) -> list[tuple[Any, ...]]:
        """One call of the function on this connection; what was not as durable as it must be is raised."""
        levelled = safe and (self._level != "local" or line.pooled)
        key = (function, len(arguments), levelled)
        statement = self._made.get(key)
        if statement is None:
            statement = self._made[key] = self._make(function, len(arguments), levelled)
        rows = await line.ask(statement, arguments)
        return _answers(rows) if levelled else rows

    async def begin(self, line: Line, *, patient: bool = False) -> None:
        """At the start of a transaction: its commit will be as durable as the level says.

        `patient` is for transactions that are not repeated: they wait for locks as long as their caller does.
        """
        lock_timeout_ms = 0 if patient else self._lock_timeout_ms
        ((standbys, *_),) = await line.ask(
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
