"""Calls of the functions of the schema, which is made, or brought up to date, before the first of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import Clock, SystemClock
from holdfast.stores.contract import Finding
from holdfast.stores.postgres.failures import NotMigrated
from holdfast.stores.postgres.migrating import Migrator

if TYPE_CHECKING:
    from holdfast.stores.postgres.database import Database

_MIGRATION_SECONDS: Final = 60.0


class Calls:
    """The calls of one store."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._migrator = Migrator(database.settings.schema, database.url)
        self._migrated = False
        self._steps: list[str] = []
        self._under_way = 0
        #: Only the stepped clock of a test is sent along; otherwise the server's own decides.
        self._clock = None if isinstance(clock, SystemClock) else clock

    def now(self) -> int | None:
        """The time that a test hands in; None for the server's own."""
        return None if self._clock is None else self._clock.now_ms()

    async def __call__(self, function: str, *args: Any, safe: bool = False) -> list[tuple[Any, ...]]:
        """The rows of one function, as durable as the level says if it must be safe."""
        self._under_way += 1
        try:
            if not self._migrated:
                await self.prepare()
            try:
                return await self._database.call(function, *args, safe=safe)
            except NotMigrated:
                # Dropped, or brought to a version that has no place for us: the second is told, the first is mended.
                self._migrated = False
                await self.prepare()
                return await self._database.call(function, *args, safe=safe)
        finally:
            self._under_way -= 1

    async def prepare(self) -> None:
        """Migrates at the first call, so that a new database needs no set-up."""
        if not self._migrated:
            # A look needs no standby, so that people can look when there is none.
            if await self._database.run(self._migrator.pending, safe=False):
                self._steps += await self._database.run(self._migrator.migrate, seconds=_MIGRATION_SECONDS)
            self._migrated = True

    async def migrate(self, *, dry_run: bool) -> list[str]:
        """The steps taken since this was last asked, or with `dry_run` those to take."""
        if dry_run:
            return await self._database.run(self._migrator.pending, safe=False)
        await self.prepare()
        steps, self._steps = self._steps, []
        return steps

    async def finding(self) -> Finding:
        """One line about the schema."""
        return await self._database.run(self._migrator.finding, safe=False)

    async def finish(self) -> None:
        """Waits for the calls under way."""
        while self._under_way:  # noqa: ASYNC110  # Calls may come from other event loops, which one event cannot serve.
            await asyncio.sleep(0.005)
