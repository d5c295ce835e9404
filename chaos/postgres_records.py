"""Where each task stands and which claims it had, read from the tables of a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from chaos.snapshot import Reading, Snapshot, place_of
from holdfast.core.ids import claim_token
from holdfast.core.task import State

Ask = Callable[[str], list[tuple[Any, ...]]]

_WAITING: Final = {
    place_of(State.READY): "SELECT task_id FROM holdfast.ready",
    place_of(State.SCHEDULED): "SELECT task_id FROM holdfast.scheduled",
    place_of(State.CLAIMED): "SELECT task_id FROM holdfast.claims",
}
_FINISHED: Final = "SELECT task_id, state FROM holdfast.finished"
#: The claim that is current or has succeeded stands with the task, those that ended before stand apart.
_ENDED: Final = "SELECT task_id, delivery, token FROM holdfast.attempts"
_CURRENT: Final = """
SELECT task_id, deliveries, epoch, claim_id FROM holdfast.claims
UNION ALL SELECT task_id, deliveries, epoch, claim_id FROM holdfast.finished WHERE claim_id IS NOT NULL
"""


def tables_of(ask: Ask) -> Reading:
    """Reads the tables with this way to ask, which finds the primary by itself."""

    def read(snapshot: Snapshot) -> None:
        for place, statement in _WAITING.items():
            for (task_id,) in ask(statement):
                snapshot.places[_id(task_id)].append(place)
        for task_id, state in ask(_FINISHED):
            snapshot.places[_id(task_id)].append(place_of(State(state)))
        for task_id, delivery, token in ask(_ENDED):
            snapshot.tokens[_id(task_id)][delivery] = token
        for task_id, delivery, epoch, claim_id in ask(_CURRENT):
            snapshot.tokens[_id(task_id)][delivery] = claim_token(epoch, delivery, claim_id)

    return read


def _id(task_id: UUID) -> str:
    return task_id.hex
