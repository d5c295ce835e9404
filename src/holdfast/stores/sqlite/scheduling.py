"""Schedules: replaced by whoever read the last version, together with the tasks of the ticks made."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.schedule import Schedule
from holdfast.core.task import NewTask
from holdfast.stores.contract import UPKEEP_BELL, DueSchedules
from holdfast.stores.sqlite import recording
from holdfast.stores.sqlite.transaction import Transaction

_decoder = msgspec.json.Decoder(Schedule)


def schedules(transaction: Transaction, due_within_ms: int | None, limit: int) -> DueSchedules:
    """Those that are due, or all, the soonest first."""
    if due_within_ms is None:
        rows = transaction.rows("schedules", {"limit": limit})
    else:
        rows = transaction.rows("schedules_due", {"before": transaction.now_ms + due_within_ms, "limit": limit})
    return DueSchedules(transaction.now_ms, [_decoder.decode(document) for (document,) in rows])


def schedule(transaction: Transaction, name: str) -> Schedule | None:
    """The schedule of this name."""
    row = transaction.row("schedule", (name,))
    return _decoder.decode(row[1]) if row else None


def put(transaction: Transaction, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask]) -> bool:
    """Replaces or removes a schedule if it still has the expected version, and records tasks with it."""
    document = None if new is None else msgspec.json.encode(new)
    version, current = transaction.row("schedule", (name,)) or (0, None)
    if current == document and version != expected:
        return True  # the same call was made before, or there is nothing left to remove
    if version != expected:
        return False
    if new is None:
        transaction.run("drop_schedule", (name,))
    else:
        _ring(transaction, new)
        bindings = {"name": name, "version": new.version, "next_at_ms": new.next_at_ms, "schedule": document}
        transaction.run("put_schedule", bindings)
    recording.enqueue(transaction, tasks)
    return True


def _ring(transaction: Transaction, new: Schedule) -> None:
    earliest = transaction.value("next_tick")
    if new.next_at_ms is not None and (earliest is None or new.next_at_ms < earliest):
        transaction.bells.add(UPKEEP_BELL)
