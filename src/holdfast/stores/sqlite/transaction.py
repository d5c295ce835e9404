"""What an operation works with: a connection inside a transaction, the time, and the wake-ups to send after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import apsw
import msgspec

from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.retry import DEAD_LETTER_TTL_MS, DEFAULT_POLICY, RESULT_TTL_MS, RunPolicy
from holdfast.errors import StaleEpoch
from holdfast.stores.contract import MAINTENANCE, MAX_BATCH, MAX_RESERVE_BYTES
from holdfast.stores.sqlite.schema import PACKAGE
from holdfast.stores.sqltext import load_statements

#: As long as what a claim and its end write into the row of a task.
_ROOM_BYTES: Final = 136
#: Every statement of this store, by name.
SQL: Final = load_statements(
    PACKAGE,
    "tasks.sql",
    "maintenance.sql",
    "documents.sql",
    "queries.sql",
    default_step_ms=str(AGED_STEP_MS),
    result_ttl_ms=str(RESULT_TTL_MS),
    dead_letter_ttl_ms=str(DEAD_LETTER_TTL_MS),
    room_bytes=str(_ROOM_BYTES),
    small_payload_bytes=str(MAX_RESERVE_BYTES // MAX_BATCH),
    # What a level of priority is worth in the queue of the task at hand.
    step=f"coalesce((SELECT step_ms FROM queues WHERE queues.queue = tasks.queue), {AGED_STEP_MS})",  # noqa: S608
)

_json_encoder = msgspec.json.Encoder()


class Transaction:
    """One transaction; operations of the same group share it."""

    __slots__ = ("connection", "now_ms", "wakeups")

    def __init__(self, connection: apsw.Connection, now_ms: int) -> None:
        self.connection = connection
        self.now_ms = now_ms
        self.wakeups: set[str] = set()

    def run(self, name: str, bindings: Any = None) -> apsw.Cursor:
        """Executes a statement by its name."""
        return self.connection.execute(SQL[name], bindings)

    def rows(self, name: str, bindings: Any = None) -> list[Any]:
        """All rows of a statement."""
        return self.connection.execute(SQL[name], bindings).fetchall()

    def row(self, name: str, bindings: Any = None) -> tuple[Any, ...]:
        """The first row, empty if there is none."""
        return self.connection.execute(SQL[name], bindings).fetchone() or ()

    def value(self, name: str, bindings: Any = None) -> Any:
        """The first column of the first row, None if there is none."""
        row = self.row(name, bindings)
        return row[0] if row else None

    def run_many(self, name: str, bindings: Iterable[Any]) -> list[Any]:
        """Executes a statement once for each set of bindings; all rows that it answers with."""
        return self.connection.executemany(SQL[name], bindings).fetchall()

    def epoch(self) -> int:
        """The epoch of the leader of the maintenance, 0 before there was one."""
        return self.value("epoch", (MAINTENANCE,)) or 0

    def check_epoch(self, epoch: int) -> None:
        """Refuses the maintenance of a process that is not the leader any more."""
        current = self.epoch()
        if epoch != current:
            raise StaleEpoch(f"the leader of the maintenance has epoch {current} now, this call is of epoch {epoch}")


def policy_text(policy: RunPolicy) -> str | None:
    """A policy as its column has it."""
    return None if policy is DEFAULT_POLICY or policy == DEFAULT_POLICY else _json_encoder.encode(policy).decode()


def headers_text(headers: dict[str, str]) -> str | None:
    """Headers as their column has them."""
    return _json_encoder.encode(headers).decode() if headers else None
