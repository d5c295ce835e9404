"""The schema: tables, made once, and functions, installed again when they differ from those of this version.

The state machine in `core/lifecycle.py` is rendered into the functions when they are installed. A checksum of them
is stored, so that a change of the machine is noticed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from psycopg import AsyncConnection

from holdfast.core import lifecycle
from holdfast.core.durations import LONGEST_MS
from holdfast.core.lifecycle import TRANSITIONS, Event
from holdfast.core.names import NAME_PATTERN, VISIBLE_PATTERN
from holdfast.core.priority import AGED_STEP_MS, HIGHEST, LOWEST
from holdfast.core.retry import DEAD_LETTER_TTL_MS, MAX_ATTEMPTS, RESULT_TTL_MS
from holdfast.core.task import FINAL_STATES, HISTORY_LIMIT, State
from holdfast.errors import StoreError, StoreTooNew
from holdfast.stores.contract import MAINTENANCE, MAINTENANCE_WAKEUP, Finding
from holdfast.stores.documents import MAP, ORDERS, QUEUE
from holdfast.stores.postgres.urls import quoted
from holdfast.stores.sqltext import render

#: Raised with every change of the tables, or of what functions take and answer.
VERSION: Final = 7
#: The oldest version whose code works with these tables and functions.
_OLDEST_CODE: Final = 7
#: The steps of `migrate`.
TABLES_STEP: Final = f"{VERSION:04d}_schema"
FUNCTIONS_STEP: Final = "functions"
#: The files with functions; the first one has the view that others take as a type.
_FUNCTIONS: Final = (
    "standing",
    "wakeups",
    "enqueue",
    "changes",
    "reserve",
    "extend",
    "completing",
    "documents",
    "maintenance",
    "prune",
    "workers",
    "reading",
)
#: A cursor is moved when it has fallen back by this much: seldom, since that is a write that all claimers share.
_FLOOR_STEP_MS: Final = 1_000
#: A cursor stays this far behind the time, so that calls that take a moment longer than others do not end below it.
_FLOOR_LAG_MS: Final = 500
#: By this much the clock may be set back without being noticed: looks go back as far beyond the last one.
_LOOK_BACK_MS: Final = 2_000
#: How often a function looks again at what others change meanwhile, before the whole call is made again.
_MOST_ROUNDS: Final = 100
#: The most combinations of type and priority in one queue: a claim for all types looks at each of them.
MAX_INDEXES_OF_A_QUEUE: Final = 5_000
#: The rows that a search looks at in one step, and the steps of one call.
_FIND_STEP_ROWS: Final = 5_000
_FIND_STEPS: Final = 20
#: A process that waits says so again within this time, and the leader notifies again every second.
_WAKEUP_MS: Final = 30_000
#: The most combinations of queue, type and priority that one prune deletes.
_FORGET_LANES: Final = 10_000
#: The size of the policy and of the headers, as JSON, of a task that is enqueued in a caller's transaction.
_MOST_TEXT_BYTES: Final = 64 * 1024
#: And its payload; apps have smaller limits of their own.
_MOST_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
#: The end of the year 9999.
_LATEST_MS: Final = 253_402_300_800_000

#: Those that the functions name.
_EVENTS: Final = (Event.ACK, Event.CANCEL, Event.EXPIRE, Event.PRIORITIZE, Event.REPLAY, Event.RESCHEDULE)

#: Plans are made once and kept, often while the tables are still empty: these keep them good when they have filled.
_PATH: Final = (
    "SET search_path = {schema}, pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off "
    "SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan"
)
_LOOK: Final = "SET search_path = {schema}, pg_catalog, pg_temp"

#: With the name of the schema, what the steps are locked by; the number is arbitrary, and only ours.
_LOCK: Final = 0x48465354
#: Not to_regclass(): it may answer from a cache that does not know yet what another process has just made.
_EXISTS: Final = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'migrations')"
#: As JSON, since older versions have no such column.
_INSTALLED: Final = """
SELECT coalesce(max(number), 0), coalesce(max(oldest_code), 0),
       max(to_jsonb(m) ->> 'functions') FILTER (WHERE number = %s)
FROM {schema}.migrations m
"""
#: Asked for first: CREATE SCHEMA IF NOT EXISTS needs the right to create one even where it is there.
_HAS_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
_BOOK: Final = """
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    number      integer PRIMARY KEY,
    name        text NOT NULL,
    oldest_code integer NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    functions   text                                    -- checksum of those that are installed
)
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """What is in a database."""

    #: 0 before the first step.
    version: int = 0
    #: The oldest version whose code still works with it.
    oldest_code: int = 0
    #: The checksum of its functions.
    functions: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaText:
    """The SQL of a schema."""

    tables: str
    functions: str

    def checksum(self) -> str:
        """Tells these functions from any others."""
        return hashlib.sha256(self.functions.encode()).hexdigest()


def schema_text(schema: str) -> SchemaText:
    """The SQL for a schema of this name, with the state machine in it."""
    functions = "\n".join(_read(f"functions/{name}.sql") for name in _FUNCTIONS)
    return SchemaText(_rendered(_read("schema.sql"), schema), _rendered(functions, schema))


class Migrator:
    """Makes one schema, or brings it up to date, by one process at a time."""

    def __init__(self, schema: str, url: str, text: SchemaText | None = None) -> None:
        self._text = schema_text(schema) if text is None else text
        self._checksum = self._text.checksum()
        self._schema = schema
        self._quoted = quoted(schema)
        self._url = url

    async def look(self, connection: AsyncConnection[Any]) -> Installed:
        """What is there; nothing is changed."""
        found = await connection.execute(_EXISTS, (self._schema,))
        if await found.fetchone() != (True,):
            return Installed()
        found = await connection.execute(_INSTALLED.format(schema=self._quoted), (VERSION,))
        row = await found.fetchone()
        return Installed(*row) if row else Installed()

    async def pending(self, connection: AsyncConnection[Any]) -> list[str]:
        """The steps that `migrate` would take."""
        return self._missing(await self.look(connection))

    async def finding(self, connection: AsyncConnection[Any]) -> Finding:
        """One line about the schema."""
        found = await self.look(connection)
        text = f"schema {self._schema!r} has version {found.version}, this version of Holdfast makes {VERSION}"
        if found.version == VERSION and found.functions != self._checksum:
            text = f"{text}; its functions are not those of this version, run: holdfast migrate"
            return Finding(level="warning", check="schema", text=text)
        return Finding(level="ok" if found.version >= VERSION else "note", check="schema", text=text)

    async def migrate(self, connection: AsyncConnection[Any]) -> list[str]:
        """Takes the steps that are missing, all or none of them, in the transaction that it is given; names them."""
        if not self._missing(await self.look(connection)):
            return []
        await connection.execute(
            "SELECT pg_advisory_xact_lock(%s, %s)", (_LOCK, zlib.crc32(self._schema.encode()) >> 1)
        )
        # Another process may have been at it until now.
        steps = self._missing(await self.look(connection))
        if TABLES_STEP in steps:
            await self._make_tables(connection)
        if steps:
            await self._install_functions(connection)
        return steps

    async def _make_tables(self, connection: AsyncConnection[Any]) -> None:
        found = await connection.execute(_HAS_SCHEMA, (self._schema,))
        if await found.fetchone() != (True,):
            await connection.execute(f"CREATE SCHEMA {self._quoted}")
        await connection.execute(_BOOK.format(schema=self._quoted), prepare=False)
        await self._run(connection, self._text.tables)
        await connection.execute(
            f"INSERT INTO {self._quoted}.migrations (number, name, oldest_code) VALUES (%s, %s, %s)",  # noqa: S608
            (VERSION, TABLES_STEP, _OLDEST_CODE),
        )

    async def _install_functions(self, connection: AsyncConnection[Any]) -> None:
        """Replaces them in place: calls under way end with the old ones, and grants stay."""
        await self._run(connection, self._text.functions)
        await connection.execute(
            f"UPDATE {self._quoted}.migrations SET functions = %s WHERE number = %s",  # noqa: S608
            (self._checksum, VERSION),
        )

    async def _run(self, connection: AsyncConnection[Any], text: str) -> None:
        await connection.execute(f"SET LOCAL search_path = {self._quoted}, pg_catalog, pg_temp")
        await connection.execute(text.encode(), prepare=False)

    def _missing(self, found: Installed) -> list[str]:
        if found.version > VERSION:
            if found.oldest_code > VERSION:
                raise StoreTooNew(
                    f"{self._url}: the schema {self._schema!r} has version {found.version}, and this worker knows "
                    f"{VERSION}: replace it with a newer version of Holdfast"
                )
            return []
        if 0 < found.version < VERSION:
            raise StoreError(
                f"{self._url}: the schema {self._schema!r} has version {found.version}, from before the first release, "
                f"and cannot be brought up to date; drop it (DROP SCHEMA {self._quoted} CASCADE), or name another one "
                "with ?schema="
            )
        if found.version == 0:
            return [TABLES_STEP]
        return [] if found.functions == self._checksum else [FUNCTIONS_STEP]


def _read(name: str) -> str:
    return files(__package__).joinpath("sql", *name.split("/")).read_text("utf-8")


def _rendered(text: str, schema: str) -> str:
    return render(render(text, **_machine()), schema=quoted(schema))


@cache
def _machine() -> dict[str, str]:
    """What the functions know of the state machine, as SQL."""
    return {
        "path": _PATH,
        "look": _LOOK,
        "moves": f"CASE state || ' ' || event {_moves()} END",
        "settlements": _list(lifecycle.SETTLEMENTS),
        "runs_again": _list(lifecycle.RUNS_AGAIN),
        "spares_attempt": _list(lifecycle.SPARES_ATTEMPT),
        "final_states": _list(FINAL_STATES),
        "claimed_text": f"''{State.CLAIMED}''",
        "lowest_id_text": "''00000000-0000-0000-0000-000000000000''::uuid",
        "scheduled_text": f"''{State.SCHEDULED}''",
        "retry_pending_text": f"''{State.RETRY_PENDING}''",
        "token": "(c.epoch || '.' || c.deliveries || '.' || c.claim_id)",
        "step_ms": str(AGED_STEP_MS),
        "floor_step_ms": str(_FLOOR_STEP_MS),
        "floor_lag_ms": str(_FLOOR_LAG_MS),
        "look_back_ms": str(_LOOK_BACK_MS),
        "most_rounds": str(_MOST_ROUNDS),
        "most_lanes": str(MAX_INDEXES_OF_A_QUEUE),
        "forget_lanes": str(_FORGET_LANES),
        "wakeup_ms": str(_WAKEUP_MS),
        "find_step_rows": str(_FIND_STEP_ROWS),
        "find_steps": str(_FIND_STEPS),
        "history_limit": str(HISTORY_LIMIT),
        "result_ttl_ms": str(RESULT_TTL_MS),
        "dead_letter_ttl_ms": str(DEAD_LETTER_TTL_MS),
        "name_pattern": f"'^{NAME_PATTERN}$'",
        "visible_pattern": f"'^{VISIBLE_PATTERN}$'",
        "lowest_priority": str(LOWEST),
        "highest_priority": str(HIGHEST),
        "latest_ms": str(_LATEST_MS),
        "longest_ms": str(LONGEST_MS),
        "most_attempts": str(MAX_ATTEMPTS),
        "most_payload_bytes": str(_MOST_PAYLOAD_BYTES),
        "most_text_bytes": str(_MOST_TEXT_BYTES),
        "lowest": "'-9223372036854775808'",
        "lowest_id": "'00000000-0000-0000-0000-000000000000'::uuid",
        "maintenance_wakeup": f"'{MAINTENANCE_WAKEUP}'",
        "maintenance": f"'{MAINTENANCE}'",
        "queue_kind": f"'{QUEUE}'",
        "map_kind": f"'{MAP}'",
        "orders_kind": f"'{ORDERS}'",
        **{event.value: f"'{event.value}'" for event in _EVENTS},
    }


def _moves() -> str:
    return " ".join(
        f"WHEN '{state.value} {event.value}' THEN '{'gone' if to is None else to.value}'"
        for (state, event), to in TRANSITIONS.items()
    )


def _list(members: Iterable[str]) -> str:
    return ", ".join(f"'{member}'" for member in sorted(members))
