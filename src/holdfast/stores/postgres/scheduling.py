"""Schedules: replaced by whoever has read the last version, together with the tasks of the ticks made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.core.schedule import Schedule
from holdfast.core.task import NewTask
from holdfast.stores.contract import DueSchedules
from holdfast.stores.postgres import reading
from holdfast.stores.postgres.sending import plain_text, task_columns

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Calls
    from holdfast.stores.postgres.database import Database

_NO_TASKS: Final[tuple[Any, ...]] = (None,) * 11
_decoder = msgspec.json.Decoder(Schedule)


class Schedules:
    """The schedules of one store."""

    def __init__(self, calls: Calls, database: Database) -> None:
        self._call = calls
        self._database = database

    async def find(self, due_within_ms: int | None, limit: int) -> DueSchedules:
        """Those that are due, or all, the soonest first."""
        rows = await self._call("all_schedules", self._call.now(), due_within_ms, limit)
        return DueSchedules(rows[0][0], [_decoder.decode(document) for _, document in rows if document is not None])

    async def get(self, name: str) -> Schedule | None:
        """The schedule of this name."""
        rows = await self._call("get_schedule", plain_text(name))
        return _decoder.decode(rows[0][0]) if rows else None

    async def put(
        self,
        name: str,
        new: Schedule | None,
        expected: int,
        tasks: Sequence[NewTask],
        *,
        epoch: int | None,
        map_version: int,
    ) -> bool:
        """Replaces or removes a schedule if it still has the expected version, and records tasks with it."""
        rows = await self._call(
            "put_schedule",
            self._call.now(),
            map_version,
            epoch,
            plain_text(name),
            expected,
            *((None, None, None) if new is None else (new.version, new.next_at_ms, msgspec.json.encode(new))),
            *(task_columns(tasks) if tasks else _NO_TASKS),
            safe=True,
        )
        if rows and rows[0][0] == "stale_epoch":
            reading.check_epoch(epoch, rows[0][2])
        if rows and rows[0][0] == "stale_version":
            return False
        _, bells = reading.recorded(self._database.url, tasks, rows)
        self._database.ring(bells)
        return True
