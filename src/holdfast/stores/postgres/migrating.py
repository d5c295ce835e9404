"""The schema: brought up to this version in numbered steps, by one process at a time."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from holdfast.errors import StoreTooNew
from holdfast.stores.contract import Finding
from holdfast.stores.postgres.text import Migration, migrations

#: With the name of the schema, what the steps are locked by; the number is arbitrary, and only ours.
_LOCK: Final = 0x48465354
#: Not to_regclass(): it may answer from a cache that does not know yet what another process has just made.
_EXISTS: Final = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'migrations')"
_BOOK: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    number      integer PRIMARY KEY,
    name        text NOT NULL,
    oldest_code integer NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


@dataclass(frozen=True, slots=True)
class Schema:
    """What is in a database."""

    #: The last step taken, 0 before the first.
    version: int = 0
    #: The oldest version whose code still works with it.
    oldest_code: int = 0


class Migrator:
    """The steps of one schema."""

    def __init__(self, schema: str, url: str, steps: Sequence[Migration] | None = None) -> None:
        self.steps = migrations(schema) if steps is None else steps
        self.newest = self.steps[-1].number
        self._schema = schema
        self._url = url

    async def look(self, connection: AsyncConnection[Any]) -> Schema:
        """What is there; nothing is changed."""
        found = await connection.execute(_EXISTS, (self._schema,))
        if await found.fetchone() != (True,):
            return Schema()
        numbers = await connection.execute(
            f"SELECT coalesce(max(number), 0), coalesce(max(oldest_code), 0) FROM {self._schema}.migrations"  # noqa: S608
        )
        row = await numbers.fetchone()
        return Schema(*row) if row else Schema()

    async def pending(self, connection: AsyncConnection[Any]) -> list[str]:
        """The steps that `migrate` would take."""
        return [step.name for step in self._missing(await self.look(connection))]

    async def finding(self, connection: AsyncConnection[Any]) -> Finding:
        """One line about the schema."""
        found = await self.look(connection)
        text = f"schema {self._schema!r} has version {found.version}, this version of Holdfast makes {self.newest}"
        return Finding(level="ok" if found.version >= self.newest else "note", check="schema", text=text)

    async def migrate(self, connection: AsyncConnection[Any]) -> list[str]:
        """Takes the steps that are missing, all or none of them, in the transaction that it is given; names them."""
        if not self._missing(await self.look(connection)):
            return []
        await connection.execute(
            "SELECT pg_advisory_xact_lock(%s, %s)", (_LOCK, zlib.crc32(self._schema.encode()) >> 1)
        )
        # Another process may have been at it until now.
        steps = self._missing(await self.look(connection))
        if steps:
            await connection.execute(_BOOK.format(schema=self._schema), prepare=False)
        for step in steps:
            await self._take(connection, step)
        return [step.name for step in steps]

    async def _take(self, connection: AsyncConnection[Any], step: Migration) -> None:
        await connection.execute(f"SET LOCAL search_path = {self._schema}, pg_catalog, pg_temp")
        await connection.execute(step.text.encode(), prepare=False)
        await connection.execute(
            f"INSERT INTO {self._schema}.migrations (number, name, oldest_code) VALUES (%s, %s, %s)",  # noqa: S608
            (step.number, step.name, step.oldest_code),
        )

    def _missing(self, found: Schema) -> list[Migration]:
        if found.version > self.newest and found.oldest_code > self.newest:
            raise StoreTooNew(
                f"{self._url}: the schema {self._schema!r} has version {found.version}, and this worker knows "
                f"{self.newest}: replace it; upgrade with: pip install --upgrade holdfast"
            )
        return [step for step in self.steps if step.number > found.version]
