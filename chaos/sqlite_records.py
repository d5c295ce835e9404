"""Where each task stands and which claims it had, read from the tables of a SQLite store."""

from __future__ import annotations

from pathlib import Path

import apsw

from chaos.snapshot import Reading, Snapshot, place_of
from holdfast.core.task import State


def rows_of(path: Path) -> Reading:
    """Reads the tables of this file."""

    def read(snapshot: Snapshot) -> None:
        with apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY) as database:
            ids: dict[int, str] = {}
            for seq, task_id, state, deliveries, token in database.execute(
                "SELECT seq, task_id, state, deliveries, token FROM tasks"
            ):
                ids[seq] = task_id
                snapshot.places[task_id].append(place_of(State(state)))
                if token:
                    snapshot.tokens[task_id][deliveries] = token
            for seq, delivery, token in database.execute("SELECT seq, delivery, token FROM attempts"):
                snapshot.tokens[ids[seq]][delivery] = token
        database.close()

    return read
